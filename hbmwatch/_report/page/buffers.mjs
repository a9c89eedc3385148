// The buffers, which of them are live at a program point, and rows of equal ones.

import { bufferName, SMALL_BUFFERS, UNLISTED_BUFFERS, unnumbered } from "./names.mjs";

const SEARCHED = ["op_name", "instruction", "shape", "source", "kind"];

/** The role of the bytes that no listed buffer has, as a number; it is added if it is new. */
function roleOfRest(roles, complete) {
  const name = complete ? "small buffers" : "not listed";
  const known = roles.findIndex((role) => role.name === name);
  if (known >= 0) return known;
  const meaning = complete ? "all buffers smaller than 16 KiB" : "buffers that are not listed here";
  return roles.push({ name, meaning, bytes: 0 }) - 1;
}

/**
 * Add to the packed columns what rows, chart and table ask of a buffer, by its number. The first
 * `peak_count` are those at the peak. The last number, `rest`, stands for all that is not listed:
 * `restAt` sets its size for a program point.
 */
export function readBuffers(packed, heap = [], peak = 0) {
  const { start, end, unpadded_bytes } = packed;
  const [rest, points] = [packed.size_bytes.length, heap.length];
  const size_bytes = Float64Array.from([...packed.size_bytes, 0]);
  const roles = [...packed.roles];
  const restRole = roleOfRest(roles, packed.complete);
  const text = (column, i) => (i === rest ? "" : packed.strings[packed[column][i]]);
  const role = Int32Array.from([...packed.role, restRole]);
  const unlisted = packed.complete ? SMALL_BUFFERS : UNLISTED_BUFFERS;
  // The sums, the first and the last program point; null means the whole program.
  const sums = Uint8Array.from({ length: rest + 1 }, (_, i) => (text("instruction", i) ? 0 : 1));
  const first = Int32Array.from(start, (p) => (p === null ? 0 : Math.min(p + 1, points - 1)));
  const last = Int32Array.from(end, (p) => (p === null || p >= points ? points - 1 : p));
  return {
    ...packed, size_bytes, roles, count: rest, rest, points, heap, peak, text,
    roleNumber: (i) => role[i],
    isSum: (i) => sums[i] === 1, // whether it stands for several buffers, of one moment
    from: (i) => first[i] ?? 0, // the first program point at which the buffer is in the heap
    until: (i) => last[i] ?? points - 1, // the last one
    lifetime: (i) => (points && !sums[i] ? last[i] - first[i] + 1 : 0),
    padding: (i) => (sums[i] ? 0 : size_bytes[i] - unpadded_bytes[i]),
    roleOf: (i) => roles[role[i]],
    stackOf: (i) =>
      (i === rest ? [] : packed.stacks[packed.stack[i]].map((frame) => packed.strings[frame])),
    name: (i, several = false) =>
      (i === rest ? unlisted : bufferName(text("op_name", i), text("instruction", i), several)),
    fullName: (i) =>
      (i === rest ? unlisted : text("op_name", i) || text("instruction", i) || SMALL_BUFFERS),
  };
}

/** The numbers of the buffers that are live at a program point. */
export function liveAt(b, point) {
  if (point === b.peak) return Int32Array.from({ length: b.peak_count }, (_, i) => i);
  const live = [];
  for (let i = 0; i < b.count; i += 1) {
    if (b.from(i) <= point && point <= b.until(i) && !b.isSum(i)) live.push(i);
  }
  return Int32Array.from(live);
}

/** The bytes at a program point that no listed buffer has; they become the size of `rest`. */
export function restAt(b, point, live) {
  let bytes = b.heap[point] ?? 0;
  for (const i of live) bytes -= b.size_bytes[i];
  b.size_bytes[b.rest] = Math.max(0, bytes);
  return b.size_bytes[b.rest];
}

/** What equal buffers have in common, as PeakSummary.grouped() has it. */
export function equalKey(b, i) {
  if (i === b.rest) return "rest";
  b.unnumbered ??= [];
  const name = (b.unnumbered[b.op_name[i]] ??= unnumbered(b.text("op_name", i)));
  const small = b.text("instruction", i) === "";
  return [b.size_bytes[i], b.shape[i], b.kind[i], b.source[i], small, name].join("|");
}

/** A number for each buffer, the same for equal ones of one role. */
export function equalNumbers(b) {
  const known = new Map();
  return Int32Array.from({ length: b.count + 1 }, (_, i) => {
    const key = `${b.roleNumber(i)}|${equalKey(b, i)}`;
    if (!known.has(key)) known.set(key, known.size);
    return known.get(key);
  });
}

/** Rows of some buffers: those with the same number of `equal` together, or each for itself. */
export function makeRows(b, members, equal = null) {
  const rows = [];
  const rowOf = equal ? new Int32Array(b.count + 1).fill(-1) : null;
  for (const i of members) {
    let row = equal && rowOf[equal[i]] >= 0 ? rows[rowOf[equal[i]]] : null;
    if (row === null) {
      row = { id: rows.length, members: [], size: 0, padding: 0, lifetime: 0, order: i };
      if (equal) rowOf[equal[i]] = row.id;
      rows.push(row);
    }
    row.members.push(i);
    row.size += b.size_bytes[i];
    row.padding += b.padding(i);
    row.lifetime = Math.max(row.lifetime, b.lifetime(i));
  }
  return rows;
}

/** A function that tells whether a buffer has all words, each in one of its texts. */
export function matcher(b, words) {
  const wanted = words.trim().toLowerCase().split(/\s+/).filter(Boolean);
  if (wanted.length) b.lower ??= b.strings.map((string) => string.toLowerCase());
  const tests = wanted.map((word) => {
    const found = Uint8Array.from(b.lower, (string) => (string.includes(word) ? 1 : 0));
    const roles = b.roles.map(({ name }) => name.toLowerCase().includes(word));
    return (i) => roles[b.roleNumber(i)]
      || (i === b.rest ? b.name(i).includes(word) : SEARCHED.some((column) => found[b[column][i]]));
  });
  return (i) => tests.every((test) => test(i));
}

/** Sort rows by one of their numbers; equal ones by size, then in program order. */
export function sortRows(rows, key, ascending) {
  const sign = ascending ? 1 : -1;
  return rows.sort((x, y) => sign * (x[key] - y[key]) || y.size - x.size || x.order - y.order);
}
