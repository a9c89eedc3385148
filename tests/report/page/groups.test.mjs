// Groups, the way to one, the flame graph, and what is in the address and on the clipboard.

import assert from "node:assert/strict";
import test from "node:test";

import { addressOf, readAddress } from "../../../hbmwatch/_report/page/address.mjs";
import { asCsv } from "../../../hbmwatch/_report/page/copy.mjs";
import { layFrames } from "../../../hbmwatch/_report/page/flame.mjs";
import { makeGroups, makeTree, nodeAt, pathTo } from "../../../hbmwatch/_report/page/groups.mjs";
import { shortFrame } from "../../../hbmwatch/_report/page/names.mjs";
import { View } from "../../../hbmwatch/_report/page/view.mjs";
import { buffersOf, pack } from "./helpers.mjs";

const BLOCK = "jit(step)/transpose(jvp(block_1))/attention/dot";
const OPS = [
  {
    instruction: "w0", op_name: "s['layers'][0]['w']", kind: "parameter", size_bytes: 4,
    shape: "f32[4]{0}",
  },
  { instruction: "w1", op_name: "s['layers'][1]['w']", kind: "parameter", size_bytes: 4 },
  {
    instruction: "a", op_name: BLOCK, size_bytes: 8, role: "gradients", source: "train.py:9",
    stack: ["/a/train.py:9, in block", "/a/train.py:20, in main"], shape: "f32[4]{0:T(128)}",
  },
  {
    instruction: "b", op_name: BLOCK.replace("1", "2"), size_bytes: 2, role: "gradients",
    stack: ["/a/train.py:12, in head", "/a/train.py:20, in main"],
  },
];
const B = buffersOf(OPS, [18]);

const groupsOf = (by, path = []) => {
  const tree = makeTree(B, by);
  return makeGroups(B, tree, nodeAt(tree, path)).groups.map(({ name, peak }) => [name, peak]);
};

test("the groups of each grouping have their bytes, the largest first", () => {
  assert.deepEqual(groupsOf("role"), [["parameters", 8], ["gradients", 10]]);
  assert.deepEqual(groupsOf("line"), [["no source line", 10], ["train.py:9", 8]]);
  assert.deepEqual(groupsOf("function"), [
    ["/a/train.py:20, in main", 10], ["arguments of the call", 8],
  ]);
  assert.deepEqual(groupsOf("path"), [["not an argument", 10], ["s", 8]]);
  assert.deepEqual(groupsOf("shape"), [["f32[4]", 12], ["no shape", 6]]);
  assert.deepEqual(groupsOf("layer"), [["block_*", 10], ["s['layers'][*]", 8]]);
});

test("below a group are the groups where it parts, and what else there is in it", () => {
  assert.deepEqual(groupsOf("function", ["/a/train.py:20, in main"]), [
    ["/a/train.py:9, in block", 8], ["/a/train.py:12, in head", 2],
  ]);
  assert.deepEqual(groupsOf("layer", ["block_*"]), [
    ["block_1/attention", 8], ["block_2/attention", 2],
  ]);
  assert.deepEqual(groupsOf("path", ["s"]), [["[0]", 4], ["[1]", 4]]);
  assert.deepEqual(groupsOf("role", ["gradients"]), [["gradients", 10]]);
});

test("a way that does not exist ends at what exists of it", () => {
  const tree = makeTree(B, "path");
  assert.deepEqual(pathTo(nodeAt(tree, ["s", "['layers']", "none"])), ["s", "['layers']"]);
});

test("a frame is a function with a file's name", () => {
  assert.equal(shortFrame("/home/me/train.py:12, in loss"), "loss train.py:12");
  assert.equal(shortFrame("/home/me/train.py:12"), "train.py:12");
});

const viewOf = () =>
  new View({ buffers: pack(OPS), heap: [18], peak: 0, limit: null });

test("frames are as wide as their bytes, callers above", () => {
  const view = Object.assign(viewOf(), { by: "function" });
  view.group();
  const frames = layFrames(view, { width: 180 }).map(({ lines, box }) =>
    [lines[0], box.x, box.y / box.h, box.w]);
  assert.deepEqual(frames, [
    ["all 18 B", 0, 0, 180], ["main train.py:20 10 B", 0, 1, 100], ["block train.py:9 8 B", 0, 2, 80],
    ["head train.py:12 2 B", 80, 2, 20], ["arguments of the call 8 B", 100, 1, 80],
  ]);
});

test("the address holds the view, and nothing where it is the first one", () => {
  const view = viewOf();
  assert.equal(addressOf(view.state()), "");
  const fields = [
    ["by", "layer"], ["sort", "+order"], ["find", "dot a&b"], ["each", "1"], ["in", "block_*"],
  ];
  view.restore(readAddress(addressOf(fields)));
  assert.deepEqual(view.state(), fields);
  view.restore(readAddress("#by=none&sort=-none&at=x&in=none&hide=none"));
  assert.deepEqual(view.state(), []);
  assert.deepEqual(readAddress("#buffers"), []);
});

test("a copied table is CSV in bytes, without formulas", () => {
  const view = viewOf();
  view.words = "attention";
  view.select();
  assert.equal(asCsv(view), "bytes,count,role,name,shape,source line,padding bytes,from,to\n"
    + "8,1,gradients,transpose(jvp(block_1))/attention/dot,f32[4],train.py:9,0,0,0\n"
    + "2,1,gradients,transpose(jvp(block_2))/attention/dot,,,0,0,0\n");
  const odd = new View({
    buffers: pack([{ instruction: "x", op_name: "=1,2", size_bytes: 1 }]), heap: [], peak: 0,
    limit: null,
  });
  assert.match(asCsv(odd), /\n1,1,parameters,"'=1,2",,,0,,\n$/);
});
