// The explorer: chart, treemap, inspector and table of one set of buffers.

import { makeRows, matchingRows, readBuffers, sortRows } from "./buffers.mjs";
import { chart, drawChart, drawLifetimes, listenToChart, roleSeries } from "./chart.mjs";
import { $, make } from "./dom.mjs";
import { formatCount } from "./format.mjs";
import { drawInspector, inspector } from "./inspector.mjs";
import { drawTable, listenToTable, markTable, reveal, table } from "./table.mjs";
import { drawCount, legend, listenToTools, tools } from "./tools.mjs";
import { drawTreemap, listenToTreemap, markTreemap, treemap } from "./treemap.mjs";

/** What the explorer shows: the buffers, their rows, and which of them the reader looks at. */
class View {
  constructor({ buffers, heap, peak, limit }) {
    this.b = readBuffers(buffers, heap.length);
    Object.assign(this, { heap, peak, limit, series: roleSeries(this.b) });
    Object.assign(this, { sortKey: "size", ascending: false, hiddenRoles: new Set(), words: "" });
    // The selected row, the one under the pointer, whether the selected one stays drawn, and
    // whether the reader uses keys.
    Object.assign(this, { active: null, hovered: null, pinned: false, usesKeys: false });
    this.fold(true);
    this.select();
  }

  /** The row that chart and treemap mark. */
  focus() {
    return this.hovered ?? (this.pinned ? this.active : null);
  }

  /** Make the rows, with equal buffers folded or not. */
  fold(folded) {
    this.rows = makeRows(this.b, folded);
    this.rowOf = new Int32Array(this.b.count);
    for (const row of this.rows) for (const i of row.members) this.rowOf[i] = row.id;
  }

  /** Choose and sort the rows to show. */
  select() {
    const matching = matchingRows(this.b, this.rows, this.words, this.hiddenRoles);
    this.shown = sortRows(matching, this.sortKey, this.ascending);
    if (!this.shown.includes(this.active)) this.active = this.shown[0] ?? null;
    this.hovered = null;
  }

  /** Choose, sort and draw the rows again, from the first one on. */
  refresh() {
    this.select();
    drawCount(this);
    $("scroll").scrollTop = 0;
    drawTable(this);
    this.mark();
  }

  /** Show everywhere which row is selected and which is hovered. */
  mark() {
    markTable(this);
    drawLifetimes(this);
    markTreemap(this);
    drawInspector(this);
  }

  /** Follow the pointer; while the reader uses keys, not if only the page moves under it. */
  point(event, row) {
    if (this.usesKeys && !event.movementX && !event.movementY) return;
    this.usesKeys = false;
    this.hover(row);
  }

  hover(row) {
    if (row === this.hovered) return;
    this.hovered = row;
    this.mark();
  }

  activate(row) {
    this.active = row;
    this.hovered = null;
    reveal(this.shown.indexOf(row));
    drawTable(this);
    this.pin(true);
  }

  /** Keep marking the selected row while no row is hovered, or stop that. */
  pin(on) {
    this.pinned = on;
    $("explorer").classList.toggle("pinned", on);
    this.mark();
  }

  draw() {
    drawChart(this);
    drawTreemap(this);
    markTreemap(this);
    drawTable(this);
  }
}

/** The section of the explorer. */
export function explorer({ buffers, heap, peak, limit, source }) {
  const shown = buffers.size_bytes.length;
  const isCut = shown < buffers.op_count;
  const left = isCut ? `the ${formatCount(shown)} largest of ${formatCount(buffers.op_count)}` : "";
  const heading = make("h2", { id: "h-buffers" }, `Buffers ${source}`);
  const head = make("div", { class: "head" }, heading, make("p", {}, left));
  const list = make("section", { id: "buffers", "aria-labelledby": "h-buffers" });
  list.append(head, legend(buffers.roles), tools(), table());
  const section = make("section", { id: "explorer", "aria-label": `The buffers ${source}` });
  if (heap.length) section.append(chart({ heap, peak, limit }));
  section.append(make("div", { class: "split" }, treemap(source), inspector()), list);
  return section;
}

/** Draw the explorer, and follow what the reader does in it. */
export function explore(data) {
  const view = new View(data);
  drawCount(view);
  view.draw();
  drawInspector(view);
  listenToTools(view);
  listenToTable(view);
  listenToTreemap(view);
  listenToChart(view);
  const section = $("explorer");
  const size = () => `${section.clientWidth}x${section.clientHeight}`;
  let drawn = size();
  // The observer also reports the size that is there when it starts.
  new ResizeObserver(() => {
    if (size() === drawn) return;
    view.draw();
    drawn = size();
  }).observe(section);
}
