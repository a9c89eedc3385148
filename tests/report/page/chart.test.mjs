// What the chart draws.

import assert from "node:assert/strict";
import test from "node:test";

import { groupSeries, lifetimeSteps } from "../../../hbmwatch/_report/page/chart.mjs";
import { drawnPoints } from "../../../hbmwatch/_report/page/curve.mjs";
import { makeGroups, makeTree } from "../../../hbmwatch/_report/page/groups.mjs";
import { buffersOf } from "./helpers.mjs";

const B = buffersOf([
  { op_name: "x_0", instruction: "a", size_bytes: 4, start: 0, end: 2 },
  { op_name: "x_1", instruction: "b", size_bytes: 4, start: 1, end: 3 },
  { op_name: "w", instruction: "c", size_bytes: 7, role: "gradients" },
], 6);

test("the bytes of each group at each point are those of its live buffers", () => {
  const groups = makeGroups(B, makeTree(B, "role"), makeTree(B, "role").nodes[0]);
  const series = groupSeries(B, groups).map(({ name, bytes }) => [name, [...bytes].slice(0, 6)]);
  assert.deepEqual(series, [
    ["parameters", [0, 4, 8, 4, 0, 0]], ["gradients", [7, 7, 7, 7, 7, 7]],
  ]);
});

test("the live bytes of some buffers change where one of them starts or ends", () => {
  assert.deepEqual(lifetimeSteps(B, [0, 1]), [[1, 4], [2, 8], [3, 4], [4, 0]]);
});

test("each pixel shows its highest point, and all points if there is room", () => {
  assert.deepEqual(drawnPoints([1, 5, 2, 9, 3, 4], 3), [1, 3, 5]);
  assert.deepEqual(drawnPoints([1, 5, 2], 3), [0, 1, 2]);
});
