// The buffers, and rows of equal ones.

import { bufferName, SMALL_BUFFERS, unnumbered } from "./names.mjs";

/** Add to the packed columns what rows, chart and table ask of a buffer, by its number. */
export function readBuffers(packed, points) {
  const { start, end, size_bytes, unpadded_bytes } = packed;
  const text = (column, i) => packed.strings[packed[column][i]];
  const from = (i) => (start[i] === null ? 0 : Math.min(start[i] + 1, points - 1));
  const until = (i) => (end[i] === null || end[i] >= points - 2 ? points - 1 : end[i]);
  return {
    ...packed,
    count: size_bytes.length,
    points,
    text,
    from, // the first program point at which the buffer is in the heap
    until, // the last one
    lifetime: (i) => (points ? until(i) - from(i) + 1 : 0),
    padding: (i) => (text("instruction", i) ? size_bytes[i] - unpadded_bytes[i] : 0),
    roleNumber: (i) => packed.role[i],
    roleOf: (i) => packed.roles[packed.role[i]],
    stackOf: (i) => packed.stacks[packed.stack[i]].map((frame) => packed.strings[frame]),
    name: (i, several = false) => bufferName(text("op_name", i), text("instruction", i), several),
    fullName: (i) => text("op_name", i) || text("instruction", i) || SMALL_BUFFERS,
  };
}

/** What equal buffers have in common, as PeakSummary.grouped() has it. */
export function equalKey(b, i) {
  const name = unnumbered(b.text("op_name", i));
  const small = b.text("instruction", i) === "";
  return [b.size_bytes[i], b.shape[i], b.kind[i], b.source[i], small, name].join("|");
}

/** Rows of buffers: equal ones of one role together, or each for itself. */
export function makeRows(b, folded) {
  const rows = new Map();
  for (let i = 0; i < b.count; i += 1) {
    const key = folded ? `${b.roleNumber(i)}|${equalKey(b, i)}` : i;
    let row = rows.get(key);
    if (row === undefined) {
      row = { id: rows.size, members: [], size: 0, padding: 0, lifetime: 0, order: i };
      rows.set(key, row);
    }
    row.members.push(i);
    row.size += b.size_bytes[i];
    row.padding += b.padding(i);
    row.lifetime = Math.max(row.lifetime, b.lifetime(i));
  }
  return [...rows.values()];
}

function searchText(b, i) {
  const columns = ["op_name", "instruction", "shape", "source", "kind"];
  const texts = columns.map((column) => b.text(column, i));
  return [...texts, b.roleOf(i).name].join(" ").toLowerCase();
}

/** The rows that have all words of the filter and a role that is shown. */
export function matchingRows(b, rows, words, hiddenRoles) {
  const wanted = words.trim().toLowerCase().split(/\s+/).filter(Boolean);
  return rows.filter((row) => {
    const i = row.members[0];
    if (hiddenRoles.has(b.roleNumber(i))) return false;
    if (wanted.length) row.search ??= searchText(b, i);
    return wanted.every((word) => row.search.includes(word));
  });
}

/** Sort rows by one of their numbers; equal ones by size, then in program order. */
export function sortRows(rows, key, ascending) {
  const sign = ascending ? 1 : -1;
  return rows.sort((x, y) => sign * (x[key] - y[key]) || y.size - x.size || x.order - y.order);
}
