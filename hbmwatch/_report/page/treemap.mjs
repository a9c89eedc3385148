// The treemap: an area for each live buffer, in its group.

import { draw } from "./dom.mjs";
import { formatCount, formatSize } from "./format.mjs";

const TILES = 400; // so many buffers have a tile of their own; the others of a group share one
const HEADER = 19;
const GROUPS = 100; // so many groups have a part of the map each
const OTHERS = { id: -3, name: "other groups", color: "r-other" };
const REST = { id: -2, name: "the rest", color: "r-other" }; // no listed buffer is in its group

/** Lay out areas in a rectangle, as square as possible (Bruls, Huizing, van Wijk 2000). */
export function squarify(items, box) {
  const total = items.reduce((sum, item) => sum + item.bytes, 0);
  if (!total) return;
  let { x, y, w, h } = box;
  const unit = (w * h) / total;
  for (let start = 0; start < items.length;) {
    const { end, area } = strip(items, start, Math.min(w, h), unit);
    const depth = area / Math.min(w, h) || 0;
    let along = 0;
    for (const item of items.slice(start, end)) {
      const length = depth ? (item.bytes * unit) / depth : 0;
      item.box = w >= h
        ? { x, y: y + along, w: depth, h: length }
        : { x: x + along, y, w: length, h: depth };
      along += length;
    }
    if (w >= h) { x += depth; w -= depth; } else { y += depth; h -= depth; }
    start = end;
  }
}

/** The items from `start` on that are squarest as one strip along a side, and their area. */
function strip(items, start, side, unit) {
  let area = 0;
  let worst = Infinity;
  let end = start;
  while (end < items.length) {
    const next = area + items[end].bytes * unit;
    const ratio = Math.max(
      (side * side * items[start].bytes * unit) / (next * next),
      (next * next) / (side * side * items[end].bytes * unit),
    );
    if (ratio > worst) break;
    worst = ratio;
    area = next;
    end += 1;
  }
  return { end: Math.max(end, start + 1), area };
}

/** The groups by their live bytes, the largest first; beyond 100 the others are one. */
function largestGroups({ groupAt, groupBytes }) {
  const ordered = [...groupBytes].filter(([, bytes]) => bytes > 0).sort((x, y) => y[1] - x[1]);
  const empty = (group, bytes) => ({ group, bytes, items: [], more: 0, rest: 0 });
  const tiles = new Map();
  for (const [id, bytes] of ordered.slice(0, GROUPS)) {
    tiles.set(id, empty(groupAt.get(id) ?? REST, bytes));
  }
  const left = ordered.slice(GROUPS).reduce((sum, [, bytes]) => sum + bytes, 0);
  if (left) tiles.set(OTHERS.id, empty(OTHERS, left));
  return tiles;
}

/** The live buffers of each group, largest first; the smaller ones of a group share one tile. */
export function makeTiles(view) {
  const { b, live, groupOf } = view;
  const inside = live.filter((i) => groupOf[i] >= 0 && b.size_bytes[i] > 0);
  const least = Float64Array.from(inside, (i) => b.size_bytes[i]).sort().at(-TILES) ?? 0;
  const large = [...inside.filter((i) => b.size_bytes[i] >= least)];
  large.sort((i, j) => b.size_bytes[j] - b.size_bytes[i] || i - j);
  const own = new Set(large.slice(0, TILES));
  const tiles = largestGroups(view);
  inside.forEach((i) => {
    const tile = tiles.get(groupOf[i]) ?? tiles.get(OTHERS.id);
    if (own.has(i)) tile.items.push({ i, bytes: b.size_bytes[i] });
    else { tile.more += 1; tile.rest += b.size_bytes[i]; }
  });
  for (const { more, rest, items } of tiles.values()) {
    if (more) items.push({ i: null, bytes: rest, more });
    items.sort((one, other) => other.bytes - one.bytes || one.i - other.i);
  }
  return [...tiles.values()].sort((one, other) => other.bytes - one.bytes);
}

/**
 * The tiles with their places: a header for each group that has room for one, then its buffers. A
 * group without room for a header is named by its first tile alone.
 */
export function layTiles(view, { width, height }) {
  const groups = makeTiles(view);
  squarify(groups, { x: 0, y: 0, w: width, h: height });
  const total = groups.reduce((sum, { bytes }) => sum + bytes, 0);
  return groups.flatMap(({ group, bytes, items, box }) => {
    const { x, y, w, h } = box;
    const headed = h > 2 * HEADER && w > 60;
    const top = headed ? HEADER : 0;
    squarify(items, { x, y: y + top, w, h: h - top });
    const share = `${((100 * bytes) / (total || 1)).toFixed(1)}%`;
    const label = `group ${group.name}: ${formatSize(bytes)}, ${share}`;
    const lines = [`${group.name} ${formatSize(bytes)}`];
    const head = { group, box: { x, y, w, h: HEADER }, label, lines };
    return [...(headed ? [head] : []), ...items.map((item) => bufferTile(view, group, item))];
  });
}

function bufferTile({ b }, group, { i, bytes, more, box }) {
  if (more) {
    const lines = [`and ${formatCount(more)} more`, formatSize(bytes)];
    return { group, box, i: null, more, lines, label: `${lines.join(", ")}, ${group.name}` };
  }
  const lines = [formatSize(bytes), b.name(i)];
  return { group, box, i, lines, label: `${b.name(i)}: ${lines[0]}, ${group.name}` };
}

/** The element of a tile. */
export function drawTile({ group, box, i, more, lines, label }, number) {
  const kind = i === undefined ? "header" : more ? "tile more" : "tile";
  const option = { role: "option", id: `tile-${number}`, "aria-label": label };
  const state = { "aria-selected": "false", "data-n": number };
  const tile = draw("g", { ...option, ...state, class: `${kind} ${group.color}` });
  const size = { x: box.x, y: box.y, width: Math.max(0, box.w), height: Math.max(0, box.h) };
  const rect = draw("rect", size);
  if (i !== undefined && i !== null) rect.dataset.i = i;
  rect.dataset.group = group.id;
  tile.append(rect, ...labels(box, lines));
  return tile;
}

function labels(box, lines) {
  if (box.w < 58 || box.h < HEADER) return [];
  return lines.slice(0, box.h < 38 ? 1 : 2).map((line, n) => {
    const room = Math.floor((box.w - 12) / (n ? 6.9 : 7.7)); // the first line is bold
    const cut = line.length > room ? `${line.slice(0, Math.max(1, room - 1))}\u2026` : line;
    return draw("text", { class: n ? "" : "size", x: box.x + 7, y: box.y + 14 + 16 * n }, cut);
  });
}
