// Buffers as the page's data has them, and the cases that the Python tests run, too.

import { readFileSync } from "node:fs";

import { readBuffers } from "../../../hbmwatch/_report/page/buffers.mjs";

/** The shared cases of a rule. */
export function sharedCases(rule) {
  return JSON.parse(readFileSync(new URL("../shared_cases.json", import.meta.url), "utf8"))[rule];
}

/** Buffers in columns, as page_data() packs them. */
export function pack(ops, roles = ["parameters", "gradients"]) {
  const strings = [];
  const number = (text) => {
    if (!strings.includes(text)) strings.push(text);
    return strings.indexOf(text);
  };
  const texts = ["op_name", "instruction", "opcode", "shape", "kind", "source"];
  const column = (name, fallback) => ops.map((op) => op[name] ?? fallback);
  const columns = texts.map((name) => [name, column(name, "").map(number)]);
  return {
    ...Object.fromEntries(columns),
    size_bytes: column("size_bytes", 0),
    unpadded_bytes: ops.map((op) => op.unpadded_bytes ?? op.size_bytes ?? 0),
    start: column("start", null),
    end: column("end", null),
    role: ops.map((op) => roles.indexOf(op.role ?? roles[0])),
    stack: ops.map((op, i) => i),
    stacks: ops.map((op) => (op.stack ?? []).map(number)),
    strings,
    roles: roles.map((name) => ({ name, meaning: "", bytes: 0 })),
    op_bytes: ops.reduce((sum, op) => sum + (op.size_bytes ?? 0), 0),
    op_count: ops.length,
    peak_count: ops.filter((op) => !op.other).length,
    complete: ops.some((op) => op.other),
  };
}

/** The same, as the page's modules take them, with a heap of this many bytes at each point. */
export const buffersOf = (ops, points = 0, peak = 0) =>
  readBuffers(pack(ops), typeof points === "number" ? Array(points).fill(0) : points, peak);
