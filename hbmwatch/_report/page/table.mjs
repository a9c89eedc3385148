// The table: one row for each group of equal buffers, sorted by a click, moved through by keys.

import { $, draw, make } from "./dom.mjs";
import { formatCount, formatSize, plural } from "./format.mjs";
import { lifetimeText } from "./inspector.mjs";
import { withoutLayout } from "./names.mjs";

const SPARE_ROWS = 12; // rows that the table keeps above and below the visible ones
// Title, classes, and the number of a row that a click sorts by.
const COLUMNS = [
  ["Size", "c-size right", "size"],
  ["Count", "c-each", null],
  ["Role", "c-role", null],
  ["Name", "c-name", null],
  ["Shape", "c-shape", null],
  ["Source line", "c-source", null],
  ["Padding", "c-padding right", "padding"],
  ["Lifetime", "c-life", "lifetime"],
  ["Order", "c-order right", "order"],
];

/** The table without its rows. */
export function table() {
  const heads = COLUMNS.map(([title, kind, key]) => {
    const th = make("th", { scope: "col", role: "columnheader", class: kind });
    if (key === null) th.append(make("span", {}, title));
    else {
      th.dataset.key = key;
      th.setAttribute("aria-sort", key === "size" ? "descending" : "none");
      th.append(make("button", { type: "button", class: "sort" }, title));
    }
    return th;
  });
  const label = "Buffers; arrow keys move, Escape clears the selection";
  const grid = { class: "buffers", id: "table", role: "grid", tabindex: 0, "aria-label": label };
  const head = make("thead", {}, make("tr", { role: "row" }, ...heads));
  return make("div", { class: "scroll", id: "scroll" }, make("table", grid, head, make("tbody")));
}

function lifeline(b, row, point) {
  const i = row.members[0];
  const box = { viewBox: "0 0 112 12", preserveAspectRatio: "none", "aria-hidden": "true" };
  const svg = draw("svg", box);
  const x = (edge) => (112 * edge) / b.points;
  const width = Math.max(2, x(b.until(i) + 1) - x(b.from(i)));
  svg.append(draw("rect", { class: "track", x: 0, y: 5, width: 112, height: 2 }));
  svg.append(draw("rect", { class: "life", x: x(b.from(i)), y: 2, width, height: 8, rx: 2 }));
  svg.append(draw("rect", { class: "tick", x: x(point + 0.5) - 0.5, y: 0, width: 1, height: 12 }));
  return svg;
}

/** What the cells of a row hold, in the order of the columns. */
function cellContents(view, row) {
  const { b } = view;
  const i = row.members[0];
  const several = row.members.length > 1;
  return [
    formatSize(row.size),
    several ? `${formatCount(row.members.length)} \u00d7 ${formatSize(b.size_bytes[i])}` : "",
    b.roleOf(i).name,
    b.name(i, several),
    withoutLayout(b.text("shape", i)),
    b.text("source", i),
    row.padding ? formatSize(row.padding) : "\u2013",
    b.points && !b.isSum(i) ? lifeline(b, row, view.point) : "",
    i === b.rest ? "" : formatCount(row.order + 1),
  ];
}

function tableRow(view, row, index) {
  const { b } = view;
  const i = row.members[0];
  const role = b.roleOf(i).name;
  const id = { role: "row", id: `row-${row.id}`, "aria-rowindex": index + 2, "data-id": row.id };
  const tr = make("tr", { ...id, class: view.groupWith(i)?.color ?? "r-other" });
  tr.classList.toggle("bare", !b.text("shape", i) && !b.text("source", i));
  cellContents(view, row).forEach((content, n) => {
    tr.append(make("td", { class: COLUMNS[n][1], role: "gridcell" }, content));
  });
  tr.querySelector(".c-size").prepend(make("span", { class: "dot", "aria-hidden": "true" }));
  tr.querySelector(".c-role").title = role;
  tr.querySelector(".c-name").title = b.fullName(i);
  tr.querySelector(".c-life").setAttribute("aria-label", lifetimeText(b, row));
  tr.querySelector(".c-padding").classList.toggle("big", row.padding > row.size / 6);
  markRow(view, tr, row);
  return tr;
}

function markRow(view, tr, row) {
  tr.classList.toggle("hover", row === view.hovered);
  tr.classList.toggle("active", row === view.active);
  const finding = view.finding ?? view.kept;
  tr.classList.toggle("found", Boolean(finding && row.members.some((i) => finding.set.has(i))));
  tr.setAttribute("aria-selected", String(row === view.active));
}

const rowHeight = () =>
  parseFloat(getComputedStyle(document.documentElement).getPropertyValue("--row"));

/** Space in place of rows that are not visible. */
function gap(rows) {
  const td = make("td", { colspan: COLUMNS.length });
  td.style.height = `${rows * rowHeight()}px`;
  return make("tr", { class: "gap", "aria-hidden": "true" }, td);
}

/** Put the visible rows into the document, and gaps in place of the others. */
export function drawTable(view) {
  const [scroll, grid] = [$("scroll"), $("table")];
  const height = rowHeight();
  const count = view.shown.length;
  const visible = view.printed || Math.ceil(scroll.clientHeight / height) + 2 * SPARE_ROWS;
  const top = Math.floor(scroll.scrollTop / height) - SPARE_ROWS;
  const first = view.printed ? 0 : Math.max(0, Math.min(top, count - visible));
  const last = Math.min(count, first + visible);
  const rows = view.shown.slice(first, last).map((row, n) => tableRow(view, row, first + n));
  const [above, below] = view.printed ? [[], []] : [[gap(first)], [gap(count - last)]];
  grid.tBodies[0].replaceChildren(...above, ...rows, ...below);
  $("unprinted").textContent = last < count ? `and ${plural(count - last, "more row")}` : "";
  grid.setAttribute("aria-rowcount", count + 1);
  drawHeads(view);
  const active = view.active && $(`row-${view.active.id}`);
  if (active) grid.setAttribute("aria-activedescendant", active.id);
  else grid.removeAttribute("aria-activedescendant");
}

/** Show which rows are selected and hovered. */
export function markTable(view) {
  for (const tr of $("table").querySelectorAll("tr[data-id]")) {
    markRow(view, tr, view.rows[tr.dataset.id]);
  }
}

/** Scroll a row into view. */
export function reveal(index) {
  const scroll = $("scroll");
  const top = index * rowHeight();
  const low = top + rowHeight() + $("table").tHead.offsetHeight - scroll.clientHeight;
  if (top < scroll.scrollTop) scroll.scrollTop = top;
  if (low > scroll.scrollTop) scroll.scrollTop = low;
}

/** Show by which column the rows are sorted. */
function drawHeads({ sortKey, ascending }) {
  for (const th of $("table").querySelectorAll("th[data-key]")) {
    const direction = ascending ? "ascending" : "descending";
    th.setAttribute("aria-sort", th.dataset.key === sortKey ? direction : "none");
  }
}

function moveInTable(view, event) {
  if (event.target !== $("table") || event.ctrlKey || event.metaKey || event.altKey) return;
  const page = Math.max(1, Math.floor($("scroll").clientHeight / rowHeight()) - 2);
  const moves = {
    ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity,
  };
  if (!Object.hasOwn(moves, event.key) || !view.shown.length) return;
  event.preventDefault();
  view.usesKeys = true;
  const index = view.shown.indexOf(view.active) + moves[event.key];
  view.activate(view.shown[Math.max(0, Math.min(view.shown.length - 1, index))]);
}

/** Sort, hover, select and scroll. */
export function listenToTable(view) {
  const [scroll, grid] = [$("scroll"), $("table")];
  const body = grid.tBodies[0];
  const rowAt = (event) => {
    const tr = event.target.closest("tr[data-id]");
    return tr ? view.rows[tr.dataset.id] : null;
  };
  for (const th of grid.querySelectorAll("th[data-key]")) {
    th.querySelector("button").addEventListener("click", () => view.sortBy(th.dataset.key));
  }
  body.addEventListener("mousemove", (event) => view.follow(event, rowAt(event)));
  body.addEventListener("mouseleave", () => view.hover(null));
  body.addEventListener("click", (event) => {
    const row = rowAt(event);
    if (row) view.activate(row);
  });
  grid.addEventListener("keydown", (event) => moveInTable(view, event));
  const redraw = () => requestAnimationFrame(() => drawTable(view));
  scroll.addEventListener("scroll", redraw, { passive: true });
}
