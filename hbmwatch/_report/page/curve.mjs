// Memory curves: the scale of a plot, its axes, steps of bytes over the program, the limit.

import { draw } from "./dom.mjs";
import { formatSize, plural } from "./format.mjs";

const LEFT = 62;
const RIGHT = 12;
const TOP = 20;
const BOTTOM = 22;

/** Where program points and bytes are in a plot of this size; `high` is the most bytes. */
export function plotScale({ width, height }, points, high) {
  const top = Math.max(high, 1) * 1.06;
  const [plotWidth, plotHeight] = [width - LEFT - RIGHT, height - TOP - BOTTOM];
  return {
    width, height, points, high: top, plotWidth, plotHeight,
    left: LEFT, right: width - RIGHT, top: TOP, bottom: height - BOTTOM,
    x: (edge) => LEFT + (edge / points) * plotWidth,
    y: (bytes) => TOP + (1 - bytes / top) * plotHeight,
    pointAt(x) {
      const point = Math.floor(((x - LEFT) / plotWidth) * points);
      return Math.max(0, Math.min(points - 1, point));
    },
  };
}

/** The program points to draw: all, or if there are too many the highest one of each pixel. */
export function drawnPoints(heap, width) {
  if (heap.length <= width) return Array.from(heap.keys());
  const chosen = new Int32Array(width).fill(-1);
  for (let p = 0; p < heap.length; p += 1) {
    const x = Math.min(width - 1, Math.floor((p / heap.length) * width));
    if (chosen[x] < 0 || heap[p] > heap[chosen[x]]) chosen[x] = p;
  }
  return Array.from(chosen);
}

/** A path along a series of bytes at some points, as steps, and back along a lower series. */
export function stepPath(scale, places, upper, lower = null) {
  const edges = (values) => places.flatMap((p, n) => {
    const height = scale.y(values[n]).toFixed(1);
    const end = places[n + 1] ?? scale.points;
    return [`${scale.x(p).toFixed(1)} ${height}`, `${scale.x(end).toFixed(1)} ${height}`];
  });
  return `M${edges(upper).join("L")}${lower ? `L${edges(lower).reverse().join("L")}Z` : ""}`;
}

/** The axes: sizes at the left, and how long the program is. */
export function drawTicks(layer, scale, end = `end, ${plural(scale.points, "point")}`) {
  const step = Math.max(1, 2 ** Math.ceil(Math.log2(scale.high / 4.5)));
  for (let bytes = 0; bytes <= scale.high; bytes += step) {
    const y = scale.y(bytes);
    layer.append(draw("line", { class: "grid", x1: scale.left, x2: scale.right, y1: y, y2: y }));
    const label = { x: scale.left - 8, y: y + 4, "text-anchor": "end" };
    layer.append(draw("text", label, formatSize(bytes).replace(".00", "")));
  }
  const y = scale.height - 5;
  layer.append(draw("text", { x: scale.left, y }, "program start"));
  layer.append(draw("text", { x: scale.right, y, "text-anchor": "end" }, end));
}

/** A line at the limit, with its size. */
export function drawLimit(layer, scale, limit) {
  const y = scale.y(limit);
  const place = { x: scale.right - 4, y: y - 5, "text-anchor": "end" };
  layer.append(draw("line", { class: "limit", x1: scale.left, x2: scale.right, y1: y, y2: y }));
  const label = `limit ${formatSize(limit)}`;
  layer.append(draw("text", { class: "limit-text halo", ...place }, label));
}
