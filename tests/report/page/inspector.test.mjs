// What the inspector says of a row.

import assert from "node:assert/strict";
import test from "node:test";

import { equalNumbers, makeRows } from "../../../hbmwatch/_report/page/buffers.mjs";
import { lifetimeText, rowFacts } from "../../../hbmwatch/_report/page/inspector.mjs";
import { buffersOf } from "./helpers.mjs";

const LATE = {
  op_name: "x_0", instruction: "fusion.1", opcode: "fusion", size_bytes: 2048, unpadded_bytes: 1024,
  start: 1, end: 4, shape: "f32[8]", source: "train.py:9",
};

const WHOLE = { bytes: 8192, moment: "the peak" };

test("a row of equal buffers says how many, and what each and all of them take", () => {
  const b = buffersOf([LATE, { ...LATE, op_name: "x_1" }], 10);
  assert.deepEqual(rowFacts(b, makeRows(b, b.size_bytes.map((_, i) => i).slice(0, -1), equalNumbers(b))[0], WHOLE), [
    ["Size", "2 \u00d7 2 KiB = 4 KiB (4,096 bytes)"],
    ["Share", "50.0% of the peak"],
    ["Padding", "1 KiB (2.0x) each"],
    ["Shape", "f32[8]"],
    ["Lifetime", "points 2 to 4 of 10, the first of them"],
    ["Instruction", "fusion fusion.1"],
    ["Source line", "train.py:9"],
  ]);
});

test("what is unknown is left out", () => {
  const b = buffersOf([{ instruction: "a" }]);
  assert.deepEqual(rowFacts(b, makeRows(b, b.size_bytes.map((_, i) => i).slice(0, -1), equalNumbers(b))[0], WHOLE), [
    ["Size", "0 B (0 bytes)"],
    ["Share", "0.0% of the peak"],
    ["Padding", "none"],
    ["Lifetime", "unknown"],
    ["Instruction", "a"],
  ]);
});

test("a buffer without a start lives through the whole program", () => {
  const b = buffersOf([{ instruction: "a" }], 5);
  assert.equal(lifetimeText(b, makeRows(b, [0])[0]), "the whole program");
});
