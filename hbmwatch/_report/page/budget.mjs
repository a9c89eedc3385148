// The bar in the page's head: the peak by role, and the limit across it.

import { draw, make, picture } from "./dom.mjs";
import { formatPercent, formatSize } from "./format.mjs";
import { colorOf } from "./roles.mjs";

const HEIGHT = 34;

const percent = (part, whole) => `${((100 * part) / whole).toFixed(3)}%`;

function segment(name, kind, start, bytes, whole) {
  const place = { x: percent(start, whole), width: percent(bytes, whole), height: HEIGHT };
  const rect = draw("rect", { class: kind, ...place });
  rect.append(draw("title", {}, `${name}: ${formatSize(bytes)}`));
  return rect;
}

/** The line of the limit with its size, and what is over it. */
function limitMarks(limit, total, whole) {
  const x = percent(limit, whole);
  const end = limit > whole / 2;
  const anchor = { "text-anchor": end ? "end" : "start" };
  const place = { x, y: -10, dx: end ? -7 : 7, ...anchor };
  const marks = [
    draw("line", { class: "limit", x1: x, x2: x, y1: -22, y2: HEIGHT }),
    draw("text", place, `limit ${formatSize(limit)}`),
  ];
  if (total <= limit) return marks;
  const over = { class: "over", x: end ? "100%" : x, y: 56, ...anchor };
  return [
    ...marks,
    draw("line", { class: "brace", x1: x, x2: "100%", y1: 39, y2: 39 }),
    draw("text", over, `${formatSize(total - limit)} over the limit`),
  ];
}

/** What the colors stand for, and how much each role is. */
function key(roles, whole) {
  const live = roles.filter(({ bytes }) => bytes > 0);
  const rows = live.map(({ name, meaning, bytes }) => make(
    "li", { class: colorOf(name), title: meaning },
    make("span", { class: "dot" }), `${name} `,
    make("b", { class: "number" }, formatSize(bytes)), " ",
    make("span", { class: "muted number" }, formatPercent(bytes, whole)),
  ));
  return make("ul", { class: "key", "aria-label": "At the peak, by role" }, rows);
}

/** The bar and its key, or nothing if no buffer has bytes. */
export function budget({ buffers, limit, page }) {
  const { roles, op_bytes: live } = buffers;
  const total = Math.max(live, page.needed_bytes ?? 0);
  const whole = Math.max(total, limit ?? 0);
  if (!roles.length || !total) return [];
  const known = roles.filter(({ bytes }) => bytes > 0);
  const svg = picture(known.map(({ name, bytes }) => `${name} ${formatSize(bytes)}`).join(", "));
  svg.append(draw("rect", { class: "track", width: "100%", height: HEIGHT }));
  let start = 0;
  for (const { name, bytes } of roles) {
    if (bytes > 0) svg.append(segment(name, `fill ${colorOf(name)}`, start, bytes, whole));
    start += bytes;
  }
  if (total > live) {
    const name = "allocated but not live at the peak (e.g. fragmentation)";
    svg.append(segment(name, "rest", live, total - live, whole));
  }
  if (limit !== null) svg.append(...limitMarks(limit, total, whole));
  const kind = `budget${limit === null ? "" : " limited"}`;
  return [make("div", { class: kind }, svg), key(roles, live)];
}
