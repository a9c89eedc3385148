// The moment: the program point that the reader looks at, in the chart.

import { drawLimit } from "./curve.mjs";
import { $, draw } from "./dom.mjs";
import { formatCount, formatSize } from "./format.mjs";

/** A program point with its bytes, as words. */
function momentText(view, p) {
  const where = p === view.peak ? "peak at point" : "point";
  return `${where} ${formatCount(p)}: ${formatSize(view.heap[p])}`;
}

/** Mark limit, peak and the moment, and say what the gray area is. */
export function drawMoment(view) {
  if (!view.scale) return;
  const { scale, heap, peak, limit, point, isPeak } = view;
  const layer = $("marks");
  layer.replaceChildren();
  if (limit !== null) drawLimit(layer, scale, limit);
  markPoint(layer, scale, peak, heap[peak], "peak", `peak ${formatSize(heap[peak])}`);
  if (!isPeak) {
    const label = `point ${formatCount(point)}: ${formatSize(heap[point])}`;
    markPoint(layer, scale, point, heap[point], "moment", label);
  }
  $("chart").setAttribute("aria-valuenow", point);
  $("chart").setAttribute("aria-valuetext", momentText(view, point));
  $("reading").textContent = momentText(view, point);
  $("back").hidden = isPeak;
  $("gray").textContent = `Gray: ${grayText(view)}.`;
}

function grayText({ b, zoomed, point, series, heap }) {
  const banded = series.reduce((sum, { bytes }) => sum + Math.max(0, bytes[point]), 0);
  const size = formatSize(Math.max(0, heap[point] - banded));
  const what = zoomed.id ? "outside the group, or not listed"
    : `buffers smaller than 16 KiB${b.complete ? "" : ", or not listed here"}`;
  return `${what}, ${size} at this point`;
}

function markPoint(layer, scale, point, bytes, kind, label) {
  const [x, y] = [scale.x(point + 0.5), scale.y(bytes)];
  const far = x > scale.width / 2;
  const place = { x: x + (far ? -9 : 9), y: y - 7, "text-anchor": far ? "end" : "start" };
  layer.append(draw("line", { class: kind, x1: x, x2: x, y1: y, y2: scale.bottom }));
  layer.append(draw("circle", { class: `${kind}-dot`, cx: x, cy: y, r: 5 }));
  layer.append(draw("text", { class: `${kind}-text halo`, ...place }, label));
}

/** Read the chart at the pointer. */
function readAt(view, event) {
  const p = view.scale.pointAt(event.clientX - $("chart").getBoundingClientRect().left);
  const x = view.scale.x(p + 0.5);
  const line = { class: "cross", x1: x, x2: x, y1: view.scale.top, y2: view.scale.bottom };
  $("cross").replaceChildren(draw("line", line));
  $("reading").textContent = momentText(view, p);
  return p;
}

/** Read the chart at the pointer; a click, a drag or a key chooses a moment. */
export function listenToChart(view) {
  if (!view.heap.length) return;
  const plot = $("chart");
  plot.addEventListener("pointermove", (event) => {
    const p = readAt(view, event);
    if (event.buttons & 1 && p !== view.point) view.choosePoint(p);
  });
  plot.addEventListener("pointerdown", (event) => view.choosePoint(readAt(view, event)));
  plot.addEventListener("pointerleave", () => {
    $("cross").replaceChildren();
    $("reading").textContent = momentText(view, view.point);
  });
  plot.addEventListener("keydown", (event) => {
    const { point, peak, heap, scale } = view;
    const pixel = event.shiftKey ? 1 : Math.max(1, Math.round(heap.length / scale.plotWidth));
    const page = Math.max(1, Math.round(heap.length / 20));
    const to = {
      ArrowRight: point + pixel, ArrowUp: point + pixel, ArrowLeft: point - pixel,
      ArrowDown: point - pixel, PageUp: point + page, PageDown: point - page, Home: 0,
      End: heap.length - 1, p: peak, P: peak,
    }[event.key];
    if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    view.choosePoint(to);
  });
  $("back").addEventListener("click", () => {
    view.choosePoint(view.peak);
    plot.focus();
  });
}
