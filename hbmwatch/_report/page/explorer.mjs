// The explorer: chart, map, inspector and table of one set of buffers, which follow the reader.

import { listenToAddress, readAddress, writeAddress } from "./address.mjs";
import { chart, drawChart, drawLifetimes } from "./chart.mjs";
import { fitColumns } from "./columns.mjs";
import { listenToCopy } from "./copy.mjs";
import { $, make } from "./dom.mjs";
import { drawInspector, inspector } from "./inspector.mjs";
import { drawMap, listenToMap, map, markMap } from "./map.mjs";
import { listenToFindings } from "./marks.mjs";
import { drawMoment, listenToChart } from "./moment.mjs";
import { listenToPrinting } from "./print.mjs";
import { drawTable, listenToTable, markTable, reveal, table } from "./table.mjs";
import { drawCount, drawTools, grouping, listenToTools, tools } from "./tools.mjs";
import { View } from "./view.mjs";

/** The view, and what is drawn when it changes. */
class Explorer extends View {
  /** Another moment. */
  choosePoint(point) {
    this.at(point);
    drawMoment(this);
    drawMap(this);
    this.list();
  }

  /** Another grouping. */
  groupBy(name) {
    Object.assign(this, { by: name, zoom: [] });
    this.group();
    this.draw();
  }

  /** Zoom to a group. */
  zoomTo(node) {
    this.zoom = [];
    for (let at = node; at.parent; at = at.parent) this.zoom.unshift(at.name);
    this.group();
    this.draw();
  }

  /** What Escape does: stop marking, else leave the group, else go back to the peak. */
  back() {
    if (this.kept || this.finding) this.keep(null);
    else if (this.pinned) this.pin(false);
    else if (this.zoomed.id) this.zoomTo(this.zoomed.parent);
    else if (!this.isPeak) this.choosePoint(null);
  }

  /** Sort by a number of the rows; again, the other way round. */
  sortBy(key) {
    this.ascending = this.sortKey === key ? !this.ascending : key === "order";
    this.sortKey = key;
    this.refresh();
  }

  /** Choose and sort the rows again. */
  refresh() {
    this.select();
    this.list();
  }

  /** Draw the rows from the first one on, and what says which they are. */
  list() {
    drawTools(this);
    drawCount(this);
    $("scroll").scrollTop = 0;
    drawTable(this);
    this.mark();
    writeAddress(this);
  }

  /** Show everywhere which buffers are selected, hovered or of a finding. */
  mark() {
    markTable(this);
    drawLifetimes(this);
    markMap(this);
    drawInspector(this);
  }

  /** Follow the pointer; while the reader uses keys, not if only the page moves under it. */
  follow(event, row) {
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

  /** Mark the buffers of a finding while it is pointed at; null for none. */
  pointTo(finding) {
    this.finding = finding;
    this.mark();
  }

  /** Mark the buffers of a finding until Escape, and show the first of their rows. */
  keep(finding) {
    Object.assign(this, { kept: finding, finding: null });
    for (const button of document.querySelectorAll(".marks")) {
      button.setAttribute("aria-pressed", String(Number(button.dataset.n) === finding?.n));
    }
    const row = this.shown.find(({ members }) => finding?.set.has(members[0]));
    if (row) {
      reveal(this.shown.indexOf(row));
      drawTable(this);
    }
    this.mark();
  }

  draw() {
    drawChart(this);
    drawMoment(this);
    drawMap(this);
    this.list();
  }
}

/** The section of the explorer. */
export function explorer({ heap, peak, limit, source }) {
  const heading = make("h2", { id: "h-buffers" }, `Buffers ${source}`);
  const head = make("div", { class: "head" }, heading, make("p", { id: "cut" }));
  const list = make("section", { id: "buffers", "aria-labelledby": "h-buffers" });
  list.append(head, tools(), table(), make("p", { id: "unprinted", class: "muted" }));
  const section = make("section", { id: "explorer", "aria-label": `The buffers ${source}` });
  if (heap.length) section.append(chart({ heap, peak, limit }));
  const split = make("div", { class: "split" }, map(), inspector());
  section.append(...grouping(), split, list);
  return section;
}

/** Draw the explorer, and follow what the reader does in it. */
export function explore(data) {
  const view = new Explorer(data);
  view.restore(readAddress(location.hash));
  fitColumns(view);
  view.draw();
  const listeners = [
    listenToTools, listenToTable, listenToMap, listenToChart, listenToCopy, listenToAddress,
    listenToPrinting,
  ];
  for (const listen of listeners) listen(view);
  listenToFindings(view, data.findings);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && event.target.id !== "filter") view.back();
  });
  const section = $("explorer");
  const size = () => `${section.clientWidth}x${section.clientHeight}`;
  let drawn = size();
  // The observer also reports the size that is there when it starts.
  new ResizeObserver(() => {
    if (size() === drawn || view.printed) return;
    view.draw();
    drawn = size();
  }).observe(section);
}
