// What several sections need of a report.

import assert from "node:assert/strict";
import test from "node:test";

import { readReport } from "../../../hbmwatch/_report/page/report.mjs";

const REPORT = { message: { limit_bytes: null }, summary: null, device: null, breakdown: {} };
const withPeak = (peak_position) =>
  readReport({ ...REPORT, summary: { heap_bytes: [1, 2, 3], peak_position } }).peak;

test("the limit is the error's, else the profile's, else the allocator's, else unknown", () => {
  const error = { limit_bytes: 1 };
  const profile = { limit: 2 };
  const allocator = { limit_bytes: 3 };
  const limits = [
    { message: error, breakdown: profile, device: allocator },
    { breakdown: profile, device: allocator },
    { device: allocator },
    {},
  ].map((known) => readReport({ ...REPORT, ...known }).limit);
  assert.deepEqual(limits, [1, 2, 3, null]);
});

test("a peak outside of the program is moved into it", () => {
  assert.deepEqual([null, -4, 1, 99].map(withPeak), [0, 0, 1, 2]);
});

test("without a profile the buffers are those of the error", () => {
  assert.equal(readReport(REPORT).source, "listed in the error message");
  assert.deepEqual(readReport(REPORT).heap, []);
});
