// Numbers as text, where only the page has them.

import assert from "node:assert/strict";
import test from "node:test";

import { formatCount, formatPercent, plural } from "../../../hbmwatch/_report/page/format.mjs";

test("counts have separated thousands", () => {
  assert.deepEqual([0, 999, 1000, 1234567].map(formatCount), ["0", "999", "1,000", "1,234,567"]);
});

test("a share is a whole percentage, and 0% of nothing", () => {
  const pairs = [[1, 3], [1, 1], [0, 5], [0, 0]];
  const shares = pairs.map(([part, whole]) => formatPercent(part, whole));
  assert.deepEqual(shares, ["33%", "100%", "0%", "0%"]);
});

test("one thing is no several things", () => {
  assert.deepEqual([0, 1, 2000].map((n) => plural(n, "row")), ["0 rows", "1 row", "2,000 rows"]);
});
