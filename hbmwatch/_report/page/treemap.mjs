// The treemap: the buffers at the peak as areas, by role.

import { $, draw, make, picture } from "./dom.mjs";
import { formatCount, formatSize } from "./format.mjs";
import { colorOf } from "./roles.mjs";

const TILES = 400; // so many buffers have a tile of their own; the others of a role share one

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

/** The buffers of each role, largest first; the smaller ones of a role share one tile. */
export function makeTiles(b) {
  const order = Array.from({ length: b.count }, (_, i) => i).filter((i) => b.size_bytes[i] > 0);
  order.sort((i, j) => b.size_bytes[j] - b.size_bytes[i] || i - j);
  const groups = b.roles.map((role) => ({ role, bytes: 0, items: [], more: 0, rest: 0 }));
  order.forEach((i, rank) => {
    const group = groups[b.roleNumber(i)];
    group.bytes += b.size_bytes[i];
    if (rank < TILES) group.items.push({ i, bytes: b.size_bytes[i] });
    else { group.more += 1; group.rest += b.size_bytes[i]; }
  });
  for (const group of groups) {
    if (group.more) group.items.push({ i: null, bytes: group.rest, more: group.more });
    group.items.sort((one, other) => other.bytes - one.bytes);
  }
  return groups.filter((group) => group.bytes).sort((one, other) => other.bytes - one.bytes);
}

/** The card of the treemap. */
export function treemap(source) {
  const label = `The buffers ${source} as areas, by role; the table below lists them all`;
  return make("div", { class: "card map", id: "map" }, picture(label));
}

export function drawTreemap({ b }) {
  const svg = $("map").querySelector("svg");
  const { width, height } = $("map").getBoundingClientRect();
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren();
  const groups = makeTiles(b);
  squarify(groups, { x: 0, y: 0, w: width, h: height });
  for (const group of groups) {
    squarify(group.items, group.box);
    for (const item of group.items) drawTile(svg, b, group, item);
  }
}

function drawTile(svg, b, group, { i, bytes, more, box }) {
  const size = { x: box.x, y: box.y, width: Math.max(0, box.w), height: Math.max(0, box.h) };
  const kind = `${colorOf(group.role.name)}${more ? " more" : ""}`;
  const rect = draw("rect", { ...size, class: kind });
  if (!more) rect.dataset.i = i;
  svg.append(rect);
  const lines = more
    ? [`and ${formatCount(more)} more`, formatSize(bytes)]
    : [formatSize(bytes), b.name(i)];
  drawLabel(svg, box, lines, colorOf(group.role.name));
}

function drawLabel(svg, box, lines, color) {
  if (box.w < 58 || box.h < 21) return;
  const room = Math.floor((box.w - 12) / 6.9);
  lines.slice(0, box.h < 38 ? 1 : 2).forEach((line, n) => {
    const cut = line.length > room ? `${line.slice(0, Math.max(1, room - 1))}\u2026` : line;
    const place = { class: n ? color : `size ${color}`, x: box.x + 7, y: box.y + 16 + 16 * n };
    svg.append(draw("text", place, cut));
  });
}

/** Mark the tiles of the row in focus, and fade those of hidden roles. */
export function markTreemap(view) {
  const marked = view.focus()?.id ?? -1;
  for (const rect of $("map").querySelectorAll("rect[data-i]")) {
    const i = Number(rect.dataset.i);
    rect.classList.toggle("off", view.hiddenRoles.has(view.b.roleNumber(i)));
    rect.classList.toggle("on", view.rowOf[i] === marked);
  }
}

/** Follow the pointer over the tiles; a click selects a tile's row. */
export function listenToTreemap(view) {
  const rowAt = (event) => {
    const i = event.target.dataset?.i;
    return i === undefined ? null : view.rows[view.rowOf[i]];
  };
  $("map").addEventListener("mousemove", (event) => view.point(event, rowAt(event)));
  $("map").addEventListener("mouseleave", () => view.hover(null));
  $("map").addEventListener("click", (event) => {
    const row = rowAt(event);
    if (row && view.shown.includes(row)) view.activate(row);
  });
}
