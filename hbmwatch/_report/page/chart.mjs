// The chart: memory over the program, by role.

import { $, draw, make, picture } from "./dom.mjs";
import { formatCount, formatSize } from "./format.mjs";
import { colorOf } from "./roles.mjs";

const LEFT = 62;
const RIGHT = 12;
const TOP = 20;
const BOTTOM = 22;

/** The bytes at each program point of the buffers that are live at the peak, for each role. */
export function roleSeries(b) {
  const series = b.roles.map(() => new Float64Array(b.points + 1));
  for (let i = 0; i < b.count && b.points; i += 1) {
    series[b.roleNumber(i)][b.from(i)] += b.size_bytes[i];
    series[b.roleNumber(i)][b.until(i) + 1] -= b.size_bytes[i];
  }
  for (const bytes of series) for (let p = 1; p < b.points; p += 1) bytes[p] += bytes[p - 1];
  return series;
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

/** The live bytes of a row's buffers, as [point, bytes] wherever they change. */
export function lifetimeSteps(b, row) {
  const changes = new Map();
  const change = (p, bytes) => changes.set(p, (changes.get(p) ?? 0) + bytes);
  for (const i of row.members) {
    change(b.from(i), b.size_bytes[i]);
    change(b.until(i) + 1, -b.size_bytes[i]);
  }
  let bytes = 0;
  return [...changes].sort((x, y) => x[0] - y[0]).map(([p, more]) => [p, (bytes += more)]);
}

const restingText = (peak) => `peak at point ${formatCount(peak)}`;

/** The card of the chart. */
export function chart({ heap, peak, limit }) {
  const over = limit === null ? "" : `; the limit is ${formatSize(limit)}`;
  const label = `Memory over ${formatCount(heap.length)} program points: the peak of `
    + `${formatSize(heap[peak])} is at point ${formatCount(peak)}${over}`;
  const reading = make("p", { id: "reading", class: "number" }, restingText(peak));
  const head = make("div", { class: "head" }, make("h2", {}, "Memory over the program"), reading);
  const plot = make("div", { id: "chart", class: "chart" }, picture(label));
  return make("div", { class: "card chart-card" }, head, plot);
}

function makeScale(view) {
  const { width, height } = $("chart").getBoundingClientRect();
  const high = view.heap.reduce((most, n) => Math.max(most, n), view.limit || 1) * 1.06;
  const plotWidth = width - LEFT - RIGHT;
  const plotHeight = height - TOP - BOTTOM;
  return {
    width, height, high, plotWidth, plotHeight,
    x: (edge) => LEFT + (edge / view.heap.length) * plotWidth,
    y: (bytes) => TOP + (1 - bytes / high) * plotHeight,
  };
}

export function drawChart(view) {
  if (!view.heap.length) return;
  view.scale = makeScale(view);
  const svg = $("chart").querySelector("svg");
  svg.setAttribute("viewBox", `0 0 ${view.scale.width} ${view.scale.height}`);
  const ids = ["ticks", "areas", "lifetimes", "marks", "cross"];
  const layers = Object.fromEntries(ids.map((id) => [id, draw("g", { id })]));
  svg.replaceChildren(...Object.values(layers));
  drawTicks(layers.ticks, view);
  drawAreas(layers.areas, view);
  drawMarks(layers.marks, view);
  drawLifetimes(view);
}

function drawTicks(layer, { scale, heap }) {
  const right = scale.width - RIGHT;
  const step = Math.max(1, 2 ** Math.ceil(Math.log2(scale.high / 4.5)));
  for (let bytes = 0; bytes <= scale.high; bytes += step) {
    const y = scale.y(bytes);
    layer.append(draw("line", { class: "grid", x1: LEFT, x2: right, y1: y, y2: y }));
    const label = { x: LEFT - 8, y: y + 4, "text-anchor": "end" };
    layer.append(draw("text", label, formatSize(bytes).replace(".00", "")));
  }
  const y = scale.height - 5;
  const end = `end, ${formatCount(heap.length)} points`;
  layer.append(draw("text", { x: LEFT, y }, "program start"));
  layer.append(draw("text", { x: right, y, "text-anchor": "end" }, end));
}

/** A path along the upper edge of a series of bytes, as steps, and back along the lower edge. */
function area(places, upper, lower, { scale, heap }) {
  const edges = (values) => places.flatMap((p, n) => {
    const height = scale.y(values[n]).toFixed(1);
    const end = places[n + 1] ?? heap.length;
    return [`${scale.x(p).toFixed(1)} ${height}`, `${scale.x(end).toFixed(1)} ${height}`];
  });
  return `M${edges(upper).join("L")}${lower ? `L${edges(lower).reverse().join("L")}Z` : ""}`;
}

function drawAreas(layer, view) {
  const places = drawnPoints(view.heap, Math.max(1, Math.floor(view.scale.plotWidth)));
  const top = places.map((p) => view.heap[p]);
  let lower = places.map(() => 0);
  view.b.roles.forEach((role, r) => {
    const bytes = view.series[r];
    if (!bytes.some((n) => n > 0)) return;
    const upper = places.map((p, n) => Math.min(lower[n] + Math.max(0, bytes[p]), top[n]));
    const path = { class: `area ${colorOf(role.name)}`, d: area(places, upper, lower, view) };
    layer.append(draw("path", path));
    lower = upper;
  });
  layer.append(draw("path", { class: "rest", d: area(places, top, lower, view) }));
  layer.append(draw("path", { class: "top", d: area(places, top, null, view) }));
}

function drawMarks(layer, { scale, heap, peak, limit }) {
  if (limit !== null) {
    const y = scale.y(limit);
    const right = scale.width - RIGHT;
    const place = { x: right - 4, y: y - 5, "text-anchor": "end" };
    layer.append(draw("line", { class: "limit", x1: LEFT, x2: right, y1: y, y2: y }));
    const label = `limit ${formatSize(limit)}`;
    layer.append(draw("text", { class: "limit-text halo", ...place }, label));
  }
  const x = scale.x(peak + 0.5);
  const y = scale.y(heap[peak]);
  const far = x > scale.width / 2;
  const place = { x: x + (far ? -9 : 9), y: y - 7, "text-anchor": far ? "end" : "start" };
  layer.append(draw("line", { class: "peak", x1: x, x2: x, y1: y, y2: scale.height - BOTTOM }));
  layer.append(draw("circle", { class: "peak-dot", cx: x, cy: y, r: 5 }));
  const label = `peak ${formatSize(heap[peak])}`;
  layer.append(draw("text", { class: "peak-text halo", ...place }, label));
}

/** Draw the lifetime of the buffers of the row in focus over the chart, to scale. */
export function drawLifetimes(view) {
  const layer = $("lifetimes");
  if (!layer) return;
  const row = view.focus();
  $("areas").setAttribute("class", row ? "dim" : "");
  layer.replaceChildren();
  if (!row) return;
  const steps = lifetimeSteps(view.b, row);
  const { x, y, plotHeight } = view.scale;
  const first = x(steps[0][0]);
  const width = Math.max(1, x(steps.at(-1)[0]) - first);
  let path = `M${first} ${y(0)}`;
  steps.forEach(([p, bytes], n) => { path += `V${y(bytes)}H${x(steps[n + 1]?.[0] ?? p)}`; });
  const color = colorOf(view.b.roleOf(row.members[0]).name);
  layer.append(draw("rect", { class: "band", x: first, width, y: TOP, height: plotHeight }));
  layer.append(draw("path", { class: `life ${color}`, d: `${path}Z` }));
}

/** Read the chart at the pointer. */
export function listenToChart(view) {
  if (!view.heap.length) return;
  $("chart").addEventListener("pointermove", (event) => {
    const { scale, heap } = view;
    const left = event.clientX - $("chart").getBoundingClientRect().left - LEFT;
    const under = Math.floor((left / scale.plotWidth) * heap.length);
    const p = Math.max(0, Math.min(heap.length - 1, under));
    const x = scale.x(p + 0.5);
    const line = { class: "cross", x1: x, x2: x, y1: TOP, y2: scale.height - BOTTOM };
    $("cross").replaceChildren(draw("line", line));
    $("reading").textContent = `point ${formatCount(p)}: ${formatSize(heap[p])}`;
  });
  $("chart").addEventListener("pointerleave", () => {
    $("cross").replaceChildren();
    $("reading").textContent = restingText(view.peak);
  });
}
