// The chart: memory over the program, by role.

import { drawLimit, drawnPoints, drawTicks, plotScale, stepPath } from "./curve.mjs";
import { $, draw, make, picture } from "./dom.mjs";
import { formatCount, formatSize } from "./format.mjs";
import { colorOf } from "./roles.mjs";

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

export function drawChart(view) {
  if (!view.heap.length) return;
  const high = view.heap.reduce((most, n) => Math.max(most, n), view.limit || 1);
  view.scale = plotScale($("chart").getBoundingClientRect(), view.heap.length, high);
  const svg = $("chart").querySelector("svg");
  svg.setAttribute("viewBox", `0 0 ${view.scale.width} ${view.scale.height}`);
  const ids = ["ticks", "areas", "lifetimes", "marks", "cross"];
  const layers = Object.fromEntries(ids.map((id) => [id, draw("g", { id })]));
  svg.replaceChildren(...Object.values(layers));
  drawTicks(layers.ticks, view.scale);
  drawAreas(layers.areas, view);
  drawMarks(layers.marks, view);
  drawLifetimes(view);
}

function drawAreas(layer, view) {
  const places = drawnPoints(view.heap, Math.max(1, Math.floor(view.scale.plotWidth)));
  const top = places.map((p) => view.heap[p]);
  let lower = places.map(() => 0);
  view.b.roles.forEach((role, r) => {
    const bytes = view.series[r];
    if (!bytes.some((n) => n > 0)) return;
    const upper = places.map((p, n) => Math.min(lower[n] + Math.max(0, bytes[p]), top[n]));
    const d = stepPath(view.scale, places, upper, lower);
    const path = { class: `area ${colorOf(role.name)}`, d };
    layer.append(draw("path", path));
    lower = upper;
  });
  layer.append(draw("path", { class: "rest", d: stepPath(view.scale, places, top, lower) }));
  layer.append(draw("path", { class: "top", d: stepPath(view.scale, places, top) }));
}

function drawMarks(layer, { scale, heap, peak, limit }) {
  if (limit !== null) drawLimit(layer, scale, limit);
  const x = scale.x(peak + 0.5);
  const y = scale.y(heap[peak]);
  const far = x > scale.width / 2;
  const place = { x: x + (far ? -9 : 9), y: y - 7, "text-anchor": far ? "end" : "start" };
  layer.append(draw("line", { class: "peak", x1: x, x2: x, y1: y, y2: scale.bottom }));
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
  const { x, y, top, plotHeight } = view.scale;
  const first = x(steps[0][0]);
  const width = Math.max(1, x(steps.at(-1)[0]) - first);
  let path = `M${first} ${y(0)}`;
  steps.forEach(([p, bytes], n) => { path += `V${y(bytes)}H${x(steps[n + 1]?.[0] ?? p)}`; });
  const color = colorOf(view.b.roleOf(row.members[0]).name);
  layer.append(draw("rect", { class: "band", x: first, width, y: top, height: plotHeight }));
  layer.append(draw("path", { class: `life ${color}`, d: `${path}Z` }));
}

/** Read the chart at the pointer. */
export function listenToChart(view) {
  if (!view.heap.length) return;
  $("chart").addEventListener("pointermove", (event) => {
    const { scale, heap } = view;
    const p = scale.pointAt(event.clientX - $("chart").getBoundingClientRect().left);
    const x = scale.x(p + 0.5);
    const line = { class: "cross", x1: x, x2: x, y1: scale.top, y2: scale.bottom };
    $("cross").replaceChildren(draw("line", line));
    $("reading").textContent = `point ${formatCount(p)}: ${formatSize(heap[p])}`;
  });
  $("chart").addEventListener("pointerleave", () => {
    $("cross").replaceChildren();
    $("reading").textContent = restingText(view.peak);
  });
}
