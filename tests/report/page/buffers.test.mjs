// Rows of buffers: folding, matching, sorting, lifetimes.

import assert from "node:assert/strict";
import test from "node:test";

import { makeRows, matchingRows, sortRows } from "../../../hbmwatch/_report/page/buffers.mjs";
import { buffersOf } from "./helpers.mjs";

const OPS = [
  { op_name: "jit(step)/layer_0/dot", instruction: "a", size_bytes: 8, start: 1, end: 3 },
  { op_name: "jit(step)/layer_1/dot", instruction: "b", size_bytes: 8, start: 2, end: 6 },
  { op_name: "jit(step)/layer_1/dot", instruction: "c", size_bytes: 8, role: "gradients" },
  { op_name: "w", instruction: "d", size_bytes: 9, unpadded_bytes: 4, source: "train.py:9" },
  { instruction: "", size_bytes: 5, unpadded_bytes: 1 },
];
const B = buffersOf(OPS, 10);

const membersOf = (rows) => rows.map((row) => row.members);

test("equal buffers of one role are one row, with their sums and their longest lifetime", () => {
  const rows = makeRows(B, true);
  assert.deepEqual(membersOf(rows), [[0, 1], [2], [3], [4]]);
  assert.deepEqual(rows[0], {
    id: 0, members: [0, 1], size: 16, padding: 0, lifetime: 4, order: 0,
  });
});

test("without folding each buffer is a row", () => {
  assert.deepEqual(membersOf(makeRows(B, false)), [[0], [1], [2], [3], [4]]);
});

test("the row of small buffers has no padding", () => {
  assert.deepEqual([3, 4].map(B.padding), [5, 0]);
});

test("a buffer is in the heap from the point after its start, else from the first one", () => {
  assert.deepEqual([B.from(0), B.until(0), B.lifetime(0)], [2, 3, 2]);
  assert.deepEqual([B.from(3), B.until(3), B.lifetime(3)], [0, 9, 10]);
});

test("without a heap nothing has a lifetime", () => {
  assert.equal(buffersOf(OPS, 0).lifetime(0), 0);
});

test("all words of the filter must occur, in any order and case", () => {
  const found = (words) => membersOf(matchingRows(B, makeRows(B, false), words, new Set()));
  assert.deepEqual(found("DOT layer_1"), [[1], [2]]);
  assert.deepEqual(found("gradients dot"), [[2]]);
  assert.deepEqual(found("train.py:9"), [[3]]);
  assert.deepEqual(found("  "), [[0], [1], [2], [3], [4]]);
  assert.deepEqual(found("nothing"), []);
});

test("rows of hidden roles do not match", () => {
  assert.deepEqual(membersOf(matchingRows(B, makeRows(B, false), "", new Set([0]))), [[2]]);
});

test("rows sort by a number, then by size, then in program order", () => {
  const sorted = (key, up) => sortRows(makeRows(B, false), key, up).map((row) => row.order);
  assert.deepEqual(sorted("size", false), [3, 0, 1, 2, 4]);
  assert.deepEqual(sorted("size", true), [4, 0, 1, 2, 3]);
  assert.deepEqual(sorted("order", true), [0, 1, 2, 3, 4]);
  assert.deepEqual(sorted("lifetime", false), [3, 2, 4, 1, 0]);
});
