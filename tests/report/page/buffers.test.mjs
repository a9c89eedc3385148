// Rows of buffers: folding, matching, sorting, lifetimes.

import assert from "node:assert/strict";
import test from "node:test";

import {
  equalNumbers, liveAt, makeRows, matcher, restAt, sortRows,
} from "../../../hbmwatch/_report/page/buffers.mjs";
import { buffersOf } from "./helpers.mjs";

const OPS = [
  { op_name: "jit(step)/layer_0/dot", instruction: "a", size_bytes: 8, start: 1, end: 3 },
  { op_name: "jit(step)/layer_1/dot", instruction: "b", size_bytes: 8, start: 2, end: 6 },
  { op_name: "jit(step)/layer_1/dot", instruction: "c", size_bytes: 8, role: "gradients" },
  { op_name: "w", instruction: "d", size_bytes: 9, unpadded_bytes: 4, source: "train.py:9" },
  { instruction: "", size_bytes: 5, unpadded_bytes: 1 },
];
const B = buffersOf(OPS, 10);

const ALL = [0, 1, 2, 3, 4];
const membersOf = (rows) => rows.map((row) => row.members);

test("equal buffers of one role are one row, with their sums and their longest lifetime", () => {
  const rows = makeRows(B, ALL, equalNumbers(B));
  assert.deepEqual(membersOf(rows), [[0, 1], [2], [3], [4]]);
  assert.deepEqual(rows[0], {
    id: 0, members: [0, 1], size: 16, padding: 0, lifetime: 4, order: 0,
  });
});

test("without folding each buffer is a row", () => {
  assert.deepEqual(membersOf(makeRows(B, ALL)), [[0], [1], [2], [3], [4]]);
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

const MOMENTS = buffersOf([
  { instruction: "w", size_bytes: 4 },
  { instruction: "a", size_bytes: 8, start: 0, end: 2 },
  { instruction: "b", size_bytes: 2, start: 2, end: 3, other: true },
], [4, 12, 13, 7, 4], 2);

test("at the peak the buffers at the peak are live, elsewhere those whose lifetime it is in", () => {
  const live = [0, 1, 2, 3, 4].map((point) => [...liveAt(MOMENTS, point)]);
  assert.deepEqual(live, [[0], [0, 1], [0, 1], [0, 2], [0]]);
});

test("the rest is what the listed buffers leave of the heap", () => {
  const rest = [0, 1, 2, 3, 4].map((point) => restAt(MOMENTS, point, liveAt(MOMENTS, point)));
  assert.deepEqual(rest, [0, 0, 1, 1, 0]);
  assert.equal(MOMENTS.name(MOMENTS.rest), "buffers smaller than 16 KiB, combined");
  assert.equal(B.name(B.rest), "buffers that are not listed, combined");
});

test("all words of the filter must occur, in any order and case", () => {
  const found = (words) => ALL.filter(matcher(B, words));
  assert.deepEqual(found("DOT layer_1"), [1, 2]);
  assert.deepEqual(found("gradients dot"), [2]);
  assert.deepEqual(found("train.py:9"), [3]);
  assert.deepEqual(found("  "), ALL);
  assert.deepEqual(found("nothing"), []);
});

test("rows sort by a number, then by size, then in program order", () => {
  const sorted = (key, up) => sortRows(makeRows(B, ALL), key, up).map((row) => row.order);
  assert.deepEqual(sorted("size", false), [3, 0, 1, 2, 4]);
  assert.deepEqual(sorted("size", true), [4, 0, 1, 2, 3]);
  assert.deepEqual(sorted("order", true), [0, 1, 2, 3, 4]);
  assert.deepEqual(sorted("lifetime", false), [3, 2, 1, 0, 4]);
});
