// The rules that Python has, too.

import assert from "node:assert/strict";
import test from "node:test";

import { equalKey } from "../../../hbmwatch/_report/page/buffers.mjs";
import { formatSize } from "../../../hbmwatch/_report/page/format.mjs";
import {
  bufferName, namedBlocks, pathKeys, unnumbered, withoutLayout, withoutOuterJit,
} from "../../../hbmwatch/_report/page/names.mjs";
import { buffersOf, sharedCases } from "./helpers.mjs";

const RULES = {
  format_size: formatSize,
  without_outer_jit: withoutOuterJit,
  unnumbered,
  without_layout: withoutLayout,
  named_blocks: (name) => namedBlocks(name).join(" "),
  path_keys: (path) => pathKeys(path).join(" "),
};

for (const [rule, run] of Object.entries(RULES)) {
  for (const [given, expected] of sharedCases(rule)) {
    test(`${rule}: ${given}`, () => assert.equal(run(given), expected));
  }
}

for (const [op, several, expected] of sharedCases("buffer_name")) {
  test(`buffer_name: ${JSON.stringify(op)}, ${several}`, () => {
    assert.equal(bufferName(op.op_name, op.instruction, several), expected);
  });
}

for (const { why, one, other, equal } of sharedCases("equal_buffers")) {
  test(`equal_buffers: ${why}`, () => {
    const b = buffersOf([one, other]);
    assert.equal(equalKey(b, 0) === equalKey(b, 1), equal);
  });
}
