// The chart: memory over the program, by group; a moment is chosen in it.

import { drawnPoints, drawTicks, plotScale, stepPath } from "./curve.mjs";
import { $, draw, make } from "./dom.mjs";
import { formatCount, formatSize, plural } from "./format.mjs";
import { shortFrame } from "./names.mjs";

const OTHER_BANDS = "other groups";
const LEAST_WIDTH = 120; // pixels; a frame may be narrower while it opens
const MOST_STEPS = 4000; // of a path; of longer ones each pixel shows its highest point

/** The bytes at each program point of the buffers of each group; groups of one color are one. */
export function groupSeries(b, { groups, groupOf, groupAt }) {
  const bands = [];
  for (const { rank, name, color } of groups) {
    bands[rank] ??= { name: shortFrame(name), color, bytes: new Float64Array(b.points + 1) };
    if (bands[rank].name !== shortFrame(name)) bands[rank].name = OTHER_BANDS;
  }
  for (let i = 0; i < b.count && b.points; i += 1) {
    if (groupOf[i] >= 0 && !b.isSum(i)) addSpan(b, i, bands[groupAt.get(groupOf[i]).rank].bytes);
  }
  for (const { bytes } of bands) for (let p = 1; p < b.points; p += 1) bytes[p] += bytes[p - 1];
  return bands;
}

function addSpan(b, i, changes) {
  changes[b.from(i)] += b.size_bytes[i];
  changes[b.until(i) + 1] -= b.size_bytes[i];
}

/** The live bytes of some buffers, as [point, bytes] wherever they change. */
export function lifetimeSteps(b, members) {
  const changes = new Map();
  const change = (p, bytes) => changes.set(p, (changes.get(p) ?? 0) + bytes);
  for (const i of members) {
    if (b.isSum(i)) continue;
    change(b.from(i), b.size_bytes[i]);
    change(b.until(i) + 1, -b.size_bytes[i]);
  }
  let bytes = 0;
  return [...changes].sort((x, y) => x[0] - y[0]).map(([p, more]) => [p, (bytes += more)]);
}

/** The card of the chart. */
export function chart({ heap, peak, limit }) {
  const over = limit === null ? "" : `; the limit is ${formatSize(limit)}`;
  const label = `Memory over ${plural(heap.length, "program point")}: the peak of `
    + `${formatSize(heap[peak])} is at point ${formatCount(peak)}${over}. Arrow keys choose a `
    + "point, with Shift one by one; P chooses the peak";
  const reading = make("p", { id: "reading", class: "number" });
  const back = make("button", { type: "button", id: "back", hidden: "" }, "Back to the peak");
  const title = make("h2", {}, "Memory over the program");
  const head = make("div", { class: "head" }, title, reading, back);
  const plot = make("div", {
    id: "chart", class: "chart", role: "slider", tabindex: 0, "aria-label": label,
    "aria-valuemin": 0, "aria-valuemax": heap.length - 1,
  }, draw("svg", { "aria-hidden": "true" }));
  const gray = make("p", { id: "gray", class: "muted" });
  return make("div", { class: "card chart-card" }, head, plot, gray);
}

export function drawChart(view) {
  if (!view.heap.length) return;
  const high = view.heap.reduce((most, n) => Math.max(most, n), view.limit || 1);
  const box = $("chart").getBoundingClientRect();
  const size = { width: Math.max(box.width, LEAST_WIDTH), height: box.height };
  view.scale = plotScale(size, view.heap.length, high);
  const svg = $("chart").querySelector("svg");
  svg.setAttribute("viewBox", `0 0 ${view.scale.width} ${view.scale.height}`);
  const ids = ["ticks", "areas", "labels", "lifetimes", "marks", "cross"];
  const layers = Object.fromEntries(ids.map((id) => [id, draw("g", { id })]));
  svg.replaceChildren(...Object.values(layers));
  drawTicks(layers.ticks, view.scale);
  drawAreas(layers.areas, layers.labels, view);
  drawLifetimes(view);
}

function drawAreas(layer, labels, view) {
  const { b, heap, scale } = view;
  view.series ??= groupSeries(b, view);
  const places = drawnPoints(heap, Math.max(1, Math.floor(scale.plotWidth)));
  const top = places.map((p) => heap[p]);
  let lower = places.map(() => 0);
  for (const { name, color, bytes } of view.series) {
    const upper = places.map((p, n) => Math.min(lower[n] + Math.max(0, bytes[p]), top[n]));
    if (upper.some((height, n) => height > lower[n])) {
      const d = stepPath(scale, places, upper, lower);
      layer.append(draw("path", { class: `area ${color}`, d }));
      drawBandLabel(labels, scale, { name, color, places, upper, lower });
    }
    lower = upper;
  }
  layer.append(draw("path", { class: "rest", d: stepPath(scale, places, top, lower) }));
  layer.append(draw("path", { class: "top", d: stepPath(scale, places, top) }));
}

/** Write a band's name into it where it is highest over the width of the name, if it fits. */
function drawBandLabel(layer, scale, { name, color, places, upper, lower }) {
  const width = Math.ceil(((name.length * 7 + 12) * places.length) / scale.plotWidth);
  const step = Math.max(1, Math.floor(width / 4));
  const middle = (places.length - width) / 2;
  let best = { room: 14 };
  for (let n = 0; n + width < places.length; n += step) {
    const top = Math.max(...upper.slice(n, n + width).map((bytes) => scale.y(bytes)));
    const bottom = Math.min(...lower.slice(n, n + width).map((bytes) => scale.y(bytes)));
    const off = Math.abs(n - middle);
    const better = bottom - top - best.room;
    if (better > 2 || (better > -0.5 && off < best.off)) {
      best = { room: bottom - top, n, off, y: (top + bottom) / 2 };
    }
  }
  if (best.n === undefined) return;
  const x = (scale.x(places[best.n]) + scale.x(places[best.n + width])) / 2;
  const place = { x, y: best.y + 4, "text-anchor": "middle", class: `band-label ${color}` };
  layer.append(draw("text", place, name));
}

/** Draw the lifetime of the buffers in focus over the chart, to scale. */
export function drawLifetimes(view) {
  const layer = $("lifetimes");
  if (!layer) return;
  const focus = view.focus();
  const steps = focus ? lifetimeSteps(view.b, focus.members) : [];
  $("areas").setAttribute("class", steps.length ? "dim" : "");
  $("labels").setAttribute("class", steps.length ? "dim" : "");
  layer.replaceChildren();
  if (!steps.length) return;
  const { x, y, top, plotHeight } = view.scale;
  const first = x(steps[0][0]);
  const width = Math.max(1, x(steps.at(-1)[0]) - first);
  const step = Math.ceil(steps.length / MOST_STEPS);
  let path = `M${first.toFixed(1)} ${y(0).toFixed(1)}`;
  for (let n = 0; n < steps.length; n += step) {
    const most = steps.slice(n, n + step).reduce((high, [, bytes]) => Math.max(high, bytes), 0);
    const end = x(steps[n + step]?.[0] ?? steps.at(-1)[0]);
    path += `V${y(most).toFixed(1)}H${end.toFixed(1)}`;
  }
  const color = focus.set ? "found" : view.groupWith(focus.members[0])?.color ?? "r-other";
  layer.append(draw("rect", { class: "band", x: first, width, y: top, height: plotHeight }));
  layer.append(draw("path", { class: `life ${color}`, d: `${path}V${y(0).toFixed(1)}Z` }));
}
