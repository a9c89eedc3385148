// The page of a comparison: one account, two curves, the groups that changed, the findings.

import { signed, size, table } from "./cells.mjs";
import { groups } from "./changes.mjs";
import { drawLimit, drawnPoints, drawTicks, plotScale, stepPath } from "./curve.mjs";
import { $, draw, make } from "./dom.mjs";
import { drawOrShowText } from "./fallback.mjs";
import { formatCount, formatSize } from "./format.mjs";

const SIDES = ["before", "after"];
const STEP = 0.01; // of the program, for an arrow key
const PAPER_WIDTH = "660px"; // A4 without its margins and those of a card

/** A row of the account. */
function entry({ name, before_bytes: before, after_bytes: after, is_part: isPart }) {
  const delta = after - before;
  const state = delta > 0 && !isPart ? "grew" : "";
  return make("tr", { class: `${isPart ? "part" : ""} ${state}` },
    make("th", { scope: "row" }, name),
    size(formatSize(before)), size(formatSize(after)), size(delta ? signed(delta) : "", "delta"));
}

function head({ title, verdict, account, sides }) {
  const total = {
    name: "total", before_bytes: sides[0].total, after_bytes: sides[1].total, is_part: false,
  };
  const columns = [["memory", ""], ...["before", "after", "change"].map((name) => [name, "size"])];
  return make("header", {},
    make("p", { class: "eyebrow" }, "hbmwatch diff"),
    make("h1", {}, title.replace(/(\d) (?=[KMGTPE]?i?B)/g, "$1\u00a0")),
    ...(verdict ? [make("p", { class: "verdict" }, verdict)] : []),
    make("section", { class: "card", "aria-labelledby": "h-account" },
      make("h2", { id: "h-account" }, "Memory of the two programs"),
      table(columns, account.map(entry), [entry(total)], "account")));
}

/** The names of the two curves, each with its line. */
function legend(sides) {
  return make("ul", { class: "sides" }, ...sides.map(({ name, module, peak, heap }, n) => {
    const line = draw("line", { class: SIDES[n], x1: 0, x2: 34, y1: 5, y2: 5 });
    const key = draw("svg", { "aria-hidden": "true" });
    key.append(line);
    return make("li", {}, key, `${SIDES[n]}: ${name}, ${module}, peak `
      + `${formatSize(peak)}${heap.length ? "" : ", no curve"}`);
  }));
}

function curves(data) {
  const { sides } = data;
  const reading = make("p", { id: "reading", class: "number" });
  const peaks = sides.map(({ peak }) => formatSize(peak));
  const label = `Memory over both programs: peak ${peaks[0]} before, ${peaks[1]} after. `
    + "Arrow keys move through the programs";
  const plot = make("div", {
    id: "chart", class: "chart", role: "slider", tabindex: 0, "aria-label": label,
    "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": 0,
  }, draw("svg", { "aria-hidden": "true" }));
  const note = "Both programs are drawn at the same width, from the first instruction to the last. "
    + "The axis is not time.";
  return make("section", { class: "card" },
    make("div", { class: "head" }, make("h2", {}, "Memory curves of both programs"), reading),
    legend(sides), plot, make("p", { class: "muted" }, note));
}

function drawCurves({ sides, limit }) {
  const box = $("chart").getBoundingClientRect();
  const high = Math.max(limit ?? 1, ...sides.map(({ heap }) => Math.max(0, ...heap)));
  const svg = $("chart").querySelector("svg");
  svg.setAttribute("viewBox", `0 0 ${box.width} ${box.height}`);
  svg.replaceChildren();
  const points = sides.map((side) => side.points).filter(Boolean).map(formatCount);
  const end = [...new Set(points)].join(" and ");
  const axes = plotScale(box, 1, high);
  drawTicks(svg, axes, `end, ${end} points`);
  sides.forEach(({ heap }, n) => {
    if (!heap.length) return;
    const scale = plotScale(box, heap.length, high);
    const places = drawnPoints(heap, Math.max(1, Math.floor(scale.plotWidth)));
    const d = stepPath(scale, places, places.map((p) => heap[p]));
    svg.append(draw("path", { class: `curve ${SIDES[n]}`, d }));
  });
  if (limit !== null) drawLimit(svg, axes, limit);
  svg.append(draw("g", { id: "cross" }));
  return axes;
}

/** Read both curves at a part of the programs between 0 and 1. */
function readAt(part, { sides }, axes) {
  const bytes = sides.map(({ heap }) =>
    heap[Math.min(heap.length - 1, Math.floor(part * heap.length))]);
  const known = bytes.every((n) => n !== undefined);
  const text = SIDES.map((side, n) =>
    `${side} ${bytes[n] === undefined ? "no curve" : formatSize(bytes[n])}`);
  const words = [`${Math.round(100 * part)}% of the program`, ...text];
  if (known) words.push(signed(bytes[1] - bytes[0]));
  const x = axes.x(part);
  const line = { class: "cross", x1: x, x2: x, y1: axes.top, y2: axes.bottom };
  $("cross").replaceChildren(draw("line", line));
  $("reading").textContent = words.join(", ");
  $("chart").setAttribute("aria-valuenow", Math.round(100 * part));
  $("chart").setAttribute("aria-valuetext", words.join(", "));
}

function listen(data) {
  let axes = drawCurves(data);
  let part = 0;
  const move = (to) => {
    part = Math.max(0, Math.min(1, to));
    readAt(part, data, axes);
  };
  const steps = { ArrowLeft: -STEP, ArrowRight: STEP, PageUp: -10 * STEP, PageDown: 10 * STEP };
  const jumps = { Home: 0, End: 1 };
  $("chart").addEventListener("pointermove", (event) => {
    const left = event.clientX - $("chart").getBoundingClientRect().left;
    move((left - axes.left) / axes.plotWidth);
  });
  $("chart").addEventListener("keydown", (event) => {
    const to = event.key in steps ? part + steps[event.key] : jumps[event.key];
    if (to === undefined) return;
    event.preventDefault();
    move(to);
  });
  const redraw = (width) => {
    $("chart").style.width = width;
    axes = drawCurves(data);
  };
  addEventListener("beforeprint", () => redraw(PAPER_WIDTH));
  addEventListener("afterprint", () => redraw(""));
  new ResizeObserver(() => { axes = drawCurves(data); }).observe($("chart"));
}

function findingList(heading, findings) {
  if (!findings.length) return [];
  return [make("h3", {}, heading), make("ul", {}, findings.map((finding) => make("li", {},
    finding.title, finding.saves_bytes ? ` (frees up to ${formatSize(finding.saves_bytes)})` : "",
    make("p", { class: "muted" }, finding.remedy))))];
}

function findings({ findings: found, why_no_findings: why }) {
  if (found === null && !why) return [];
  const lists = found === null ? []
    : [...findingList("Gone", found.gone), ...findingList("New", found.new)];
  const text = why || "Both programs have the same findings.";
  const content = lists.length ? lists : [make("p", {}, text)];
  return [make("section", { class: "card" }, make("h2", {}, "Findings"), ...content)];
}

function show(data) {
  $("report").append(head(data), curves(data), groups(data), ...findings(data));
  listen(data);
}

drawOrShowText(show, $("data").textContent);
