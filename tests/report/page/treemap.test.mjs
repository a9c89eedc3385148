// The layout of the treemap.

import assert from "node:assert/strict";
import test from "node:test";

import { liveAt } from "../../../hbmwatch/_report/page/buffers.mjs";
import { makeGroups, makeTree } from "../../../hbmwatch/_report/page/groups.mjs";
import { makeTiles, squarify } from "../../../hbmwatch/_report/page/treemap.mjs";
import { bytesOfGroups } from "../../../hbmwatch/_report/page/view.mjs";
import { buffersOf } from "./helpers.mjs";

/** All buffers, by role. */
function viewOf(ops) {
  const b = buffersOf(ops);
  const tree = makeTree(b, "role");
  const view = { b, live: liveAt(b, 0), ...makeGroups(b, tree, tree.nodes[0]) };
  return { ...view, groupBytes: bytesOfGroups(view) };
}

const BOX = { x: 10, y: 20, w: 300, h: 100 };
const area = ({ w, h }) => w * h;

test("areas are in proportion to bytes and fill the rectangle", () => {
  const items = [50, 25, 15, 5, 5].map((bytes) => ({ bytes }));
  squarify(items, BOX);
  for (const { bytes, box } of items) {
    assert.ok(Math.abs(area(box) - bytes * 300) < 1e-6, `${bytes}: ${area(box)}`);
    assert.ok(box.x >= 10 && box.x + box.w <= 310 + 1e-9);
    assert.ok(box.y >= 20 && box.y + box.h <= 120 + 1e-9);
  }
});

test("tiles of equal bytes are nearly square", () => {
  const items = Array.from({ length: 12 }, () => ({ bytes: 1 }));
  squarify(items, BOX);
  assert.ok(items.every(({ box }) => Math.max(box.w / box.h, box.h / box.w) < 1.5));
});

test("no bytes, no layout", () => {
  const items = [{ bytes: 0 }];
  squarify(items, BOX);
  assert.deepEqual(items, [{ bytes: 0 }]);
});

test("a rectangle without area has tiles without area", () => {
  const items = [{ bytes: 2 }, { bytes: 1 }];
  squarify(items, { x: 0, y: 0, w: 0, h: 0 });
  assert.deepEqual(items.map(({ box }) => area(box)), [0, 0]);
});

test("roles and their buffers come largest first; buffers without bytes have no tile", () => {
  const groups = makeTiles(viewOf([
    { instruction: "a", size_bytes: 1 },
    { instruction: "b", size_bytes: 5, role: "gradients" },
    { instruction: "c", size_bytes: 2 },
    { instruction: "d", size_bytes: 0 },
  ]));
  const tiles = groups.map(({ group, bytes, items }) => [group.name, bytes, items.map(({ i }) => i)]);
  assert.deepEqual(tiles, [["gradients", 5, [1]], ["parameters", 3, [2, 0]]]);
});

test("beyond 400 buffers those of a role share one tile", () => {
  const op = (_, n) => ({ instruction: `a${n}`, size_bytes: 500 - n });
  const ops = Array.from({ length: 405 }, op);
  const [{ items }] = makeTiles(viewOf(ops));
  assert.equal(items.length, 401);
  assert.deepEqual(items.find(({ i }) => i === null), {
    i: null, bytes: 100 + 99 + 98 + 97 + 96, more: 5,
  });
});
