"use strict";
// The page's explorer: chart, treemap and table of one set of buffers. All text from the report
// goes in through textContent, never as markup.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  if (!data.buffers) return;

  const TILES = 400;         // the treemap names this many buffers and sums up the others
  const SPARE_ROWS = 12;     // rows that the table keeps above and below what is seen
  const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  const SVG = "http://www.w3.org/2000/svg";
  const $ = (id) => document.getElementById(id);
  const b = data.buffers;
  const count = b.size.length;
  const points = data.heap.length;
  const text = (column, i) => data.strings[column[i]];

  // --- numbers and elements ---------------------------------------------------------------------

  function formatSize(bytes) {
    let size = Math.abs(bytes);
    let unit = 0;
    while (size >= 1024 && unit < UNITS.length - 1) { size /= 1024; unit += 1; }
    const sign = bytes < 0 ? "-" : "";
    const digits = unit >= 3 ? size.toFixed(2)
      : size >= 100 ? size.toFixed(0) : size.toFixed(1).replace(/\.0$/, "");
    return `${sign}${digits} ${UNITS[unit]}`;
  }

  const formatCount = (n) => n.toLocaleString("en-US");

  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  function draw(tag, attributes = {}, content = null) {
    const element = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (content !== null) element.textContent = content;
    return element;
  }

  // --- buffers, and rows of equal ones -----------------------------------------------------------

  /** The first and the last program point at which a buffer is in the heap. */
  const from = (i) => (b.start[i] < 0 ? 0 : Math.min(b.start[i] + 1, points - 1));
  const until = (i) => (b.end[i] < 0 || b.end[i] >= points - 2 ? points - 1 : b.end[i]);
  const lifetime = (i) => (points ? until(i) - from(i) + 1 : 0);
  const padding = (i) => (b.unpadded[i] < 0 ? 0 : b.size[i] - b.unpadded[i]);

  function keyOf(i) {
    const name = text(b.name, i).replace(/\d+/g, "*");
    return [b.size[i], b.shape[i], b.kind[i], b.role[i], b.source[i], name].join("|");
  }

  /** Rows of buffers: equal ones together, or each for itself. */
  function rowsOf(folded) {
    const rows = [];
    const known = new Map();
    for (let i = 0; i < count; i += 1) {
      const key = folded ? keyOf(i) : i;
      let row = known.get(key);
      if (row === undefined) {
        row = { members: [], size: 0, padding: 0, lifetime: 0, order: i };
        known.set(key, row);
        rows.push(row);
      }
      row.members.push(i);
      row.size += b.size[i];
      row.padding += padding(i);
      row.lifetime = Math.max(row.lifetime, lifetime(i));
    }
    return rows;
  }

  const state = {
    rows: [], shown: [], sort: "size", ascending: false,
    hidden: new Set(), words: "", active: null, hover: null, pinned: false, keys: false,
  };

  function searchText(i) {
    const columns = [b.name, b.instruction, b.shape, b.source, b.kind];
    const role = data.roles[b.role[i]].name;
    return `${columns.map((column) => text(column, i)).join(" ")} ${role}`.toLowerCase();
  }

  function isShown(row) {
    const i = row.members[0];
    if (state.hidden.has(b.role[i])) return false;
    return !state.words || state.words.split(/\s+/).every((word) => {
      row.search ??= searchText(i);
      return row.search.includes(word);
    });
  }

  function select() {
    const sign = state.ascending ? 1 : -1;
    const key = state.sort;
    state.shown = state.rows.filter(isShown);
    state.shown.sort((x, y) => sign * (x[key] - y[key]) || y.size - x.size || x.order - y.order);
    const bytes = state.shown.reduce((sum, row) => sum + row.size, 0);
    const buffers = state.shown.reduce((sum, row) => sum + row.members.length, 0);
    $("count").textContent = `${formatCount(buffers)} buffers, ${formatSize(bytes)}`;
    if (!state.shown.includes(state.active)) state.active = state.shown[0] ?? null;
    state.hover = null;
  }

  function setRows() {
    state.rows = rowsOf($("fold").checked);
    state.rows.forEach((row, id) => { row.id = id; });
    state.rowOf = new Int32Array(count);
    for (const row of state.rows) for (const i of row.members) state.rowOf[i] = row.id;
  }

  // --- the chart: memory over program order -------------------------------------------------------

  const LEFT = 62;
  const RIGHT = 12;
  const TOP = 20;
  const BOTTOM = 22;

  /** Bytes at each point of the buffers that are live at the peak, for each role. */
  const series = data.roles.map(() => new Float64Array(points + 1));
  for (let i = 0; i < count && points; i += 1) {
    series[b.role[i]][from(i)] += b.size[i];
    series[b.role[i]][until(i) + 1] -= b.size[i];
  }
  for (const bytes of series) for (let p = 1; p < points; p += 1) bytes[p] += bytes[p - 1];

  /** The points to draw: all, or where there are too many the highest of each pixel's. */
  function columns(width) {
    const all = Array.from({ length: points }, (_, p) => p);
    if (points <= width) return all;
    const chosen = new Int32Array(width).fill(-1);
    for (let p = 0; p < points; p += 1) {
      const x = Math.min(width - 1, Math.floor((p / points) * width));
      if (chosen[x] < 0 || data.heap[p] > data.heap[chosen[x]]) chosen[x] = p;
    }
    return Array.from(chosen);
  }

  let scale = null;

  function setScale() {
    const box = $("chart").getBoundingClientRect();
    const high = data.heap.reduce((most, bytes) => Math.max(most, bytes), data.limit || 1) * 1.06;
    const plotWidth = box.width - LEFT - RIGHT;
    const plotHeight = box.height - TOP - BOTTOM;
    scale = {
      width: box.width, height: box.height, high, plotWidth, plotHeight,
      x: (edge) => LEFT + (edge / points) * plotWidth,
      y: (bytes) => TOP + (1 - bytes / high) * plotHeight,
    };
  }

  /** A path along the upper edge of a series of bytes, as steps, and back along the lower one. */
  function area(places, upper, lower) {
    const { x, y } = scale;
    const edges = (values) => places.map((p, n) => {
      const height = y(values[n]).toFixed(1);
      const end = places[n + 1] ?? points;
      return [`${x(p).toFixed(1)} ${height}`, `${x(end).toFixed(1)} ${height}`];
    }).flat();
    return `M${edges(upper).join("L")}${lower ? `L${edges(lower).reverse().join("L")}Z` : ""}`;
  }

  function drawTicks(svg) {
    const step = Math.max(1, 2 ** Math.ceil(Math.log2(scale.high / 4.5)));
    for (let bytes = 0; bytes <= scale.high; bytes += step) {
      const y = scale.y(bytes);
      svg.append(draw("line", { class: "grid", x1: LEFT, x2: scale.width - RIGHT, y1: y, y2: y }));
      const label = { x: LEFT - 8, y: y + 4, "text-anchor": "end" };
      svg.append(draw("text", label, formatSize(bytes).replace(".00", "")));
    }
    const y = scale.height - 5;
    svg.append(draw("text", { x: LEFT, y }, "program start"));
    svg.append(draw("text", { x: scale.width - RIGHT, y, "text-anchor": "end" },
      `end, ${formatCount(points)} points`));
  }

  function drawAreas(svg) {
    const places = columns(Math.max(1, Math.floor(scale.plotWidth)));
    const top = places.map((p) => data.heap[p]);
    let lower = places.map(() => 0);
    data.roles.forEach((role, r) => {
      if (!series[r].some((bytes) => bytes > 0)) return;
      const upper = places.map((p, n) => Math.min(lower[n] + Math.max(0, series[r][p]), top[n]));
      svg.append(draw("path", { class: `area r-${role.color}`, d: area(places, upper, lower) }));
      lower = upper;
    });
    svg.append(draw("path", { class: "rest", d: area(places, top, lower) }));
    svg.append(draw("path", { class: "top", d: area(places, top, null) }));
  }

  function drawMarks(svg) {
    if (data.limit !== null) {
      const y = scale.y(data.limit);
      svg.append(draw("line", { class: "limit", x1: LEFT, x2: scale.width - RIGHT, y1: y, y2: y }));
      const label = { class: "limit-text halo", x: scale.width - RIGHT - 4, y: y - 5, "text-anchor": "end" };
      svg.append(draw("text", label, `limit ${formatSize(data.limit)}`));
    }
    const peak = data.heap[data.peak];
    const x = scale.x(data.peak + 0.5);
    const y = scale.y(peak);
    svg.append(draw("line", { class: "peak", x1: x, x2: x, y1: y, y2: scale.height - BOTTOM }));
    svg.append(draw("circle", { class: "peak-dot", cx: x, cy: y, r: 5 }));
    const far = x > scale.width / 2;
    const label = { class: "peak-text halo", x: x + (far ? -9 : 9), y: y - 7, "text-anchor": far ? "end" : "start" };
    svg.append(draw("text", label, `peak ${formatSize(peak)}`));
  }

  function drawChart() {
    if (!points) return;
    setScale();
    const svg = $("chart").querySelector("svg");
    svg.setAttribute("viewBox", `0 0 ${scale.width} ${scale.height}`);
    const layers = ["ticks", "base", "lifetimes", "marks", "cross"].map((id) => draw("g", { id }));
    svg.replaceChildren(...layers);
    drawTicks(layers[0]);
    drawAreas(layers[1]);
    drawMarks(layers[3]);
    drawLifetimes();
  }

  /** How many bytes of a row's buffers are live, as [point, bytes] where that changes. */
  function stepsOf(row) {
    const changes = new Map();
    const change = (p, bytes) => changes.set(p, (changes.get(p) ?? 0) + bytes);
    for (const i of row.members) {
      change(from(i), b.size[i]);
      change(until(i) + 1, -b.size[i]);
    }
    let bytes = 0;
    return [...changes].sort((x, y) => x[0] - y[0]).map(([p, more]) => [p, (bytes += more)]);
  }

  /** Draw the lifetime of the hovered (else the selected) row's buffers over the chart, to scale. */
  function drawLifetimes() {
    const row = state.hover ?? (state.pinned ? state.active : null);
    const layer = $("lifetimes");
    if (!layer) return;
    $("base").setAttribute("class", row ? "dim" : "");
    layer.replaceChildren();
    if (!row) return;
    const steps = stepsOf(row);
    const { x, y } = scale;
    const first = x(steps[0][0]);
    const last = x(steps[steps.length - 1][0]);
    const band = { class: "band", x: first, width: Math.max(1, last - first), y: TOP, height: scale.plotHeight };
    let path = `M${first} ${y(0)}`;
    steps.forEach(([p, bytes], n) => {
      path += `V${y(bytes)}H${x(steps[n + 1]?.[0] ?? p)}`;
    });
    const role = data.roles[b.role[row.members[0]]].color;
    layer.append(draw("rect", band), draw("path", { class: `life r-${role}`, d: `${path}Z` }));
  }

  function readChart(event) {
    const box = $("chart").getBoundingClientRect();
    const at = ((event.clientX - box.left - LEFT) / scale.plotWidth) * points;
    const p = Math.max(0, Math.min(points - 1, Math.floor(at)));
    const x = scale.x(p + 0.5);
    $("cross").replaceChildren(
      draw("line", { class: "cross", x1: x, x2: x, y1: TOP, y2: scale.height - BOTTOM }));
    $("reading").textContent = `point ${formatCount(p)}: ${formatSize(data.heap[p])}`;
  }

  function leaveChart() {
    $("cross").replaceChildren();
    $("reading").textContent = $("reading").dataset.rest;
  }

  // --- the treemap: the buffers at the peak -------------------------------------------------------

  /** Lay out areas in a rectangle, as squarish as can be (Bruls, Huizing, van Wijk 2000). */
  function squarify(items, box) {
    const total = items.reduce((sum, item) => sum + item.bytes, 0);
    if (!total) return;
    let { x, y, w, h } = box;
    const unit = (w * h) / total;
    for (let start = 0; start < items.length;) {
      const side = Math.min(w, h);
      let sum = 0;
      let worst = Infinity;
      let end = start;
      while (end < items.length) {
        const next = sum + items[end].bytes * unit;
        const ratio = Math.max((side * side * items[start].bytes * unit) / (next * next),
          (next * next) / (side * side * items[end].bytes * unit));
        if (ratio > worst) break;
        worst = ratio;
        sum = next;
        end += 1;
      }
      const depth = sum / side;
      let along = 0;
      for (const item of items.slice(start, end)) {
        const length = (item.bytes * unit) / depth;
        item.box = w >= h ? { x, y: y + along, w: depth, h: length } : { x: x + along, y, w: length, h: depth };
        along += length;
      }
      if (w >= h) { x += depth; w -= depth; } else { y += depth; h -= depth; }
      start = end;
    }
  }

  /** The buffers of each role, largest first; beyond the first ones, one tile for all others. */
  function tiles() {
    const order = Array.from({ length: count }, (_, i) => i).filter((i) => b.size[i] > 0);
    order.sort((i, j) => b.size[j] - b.size[i] || i - j);
    const groups = data.roles.map((role) => ({ role, bytes: 0, items: [], more: 0, rest: 0 }));
    order.forEach((i, rank) => {
      const group = groups[b.role[i]];
      group.bytes += b.size[i];
      if (rank < TILES) group.items.push({ i, bytes: b.size[i] });
      else { group.more += 1; group.rest += b.size[i]; }
    });
    for (const group of groups) {
      if (group.more) group.items.push({ i: null, bytes: group.rest, more: group.more });
      group.items.sort((one, other) => other.bytes - one.bytes);
    }
    return groups.filter((group) => group.bytes).sort((one, other) => other.bytes - one.bytes);
  }

  function label(svg, box, lines) {
    if (box.w < 58 || box.h < 21) return;
    const room = Math.floor((box.w - 12) / 6.9);
    lines.slice(0, box.h < 38 ? 1 : 2).forEach((line, n) => {
      const cut = line.length > room ? `${line.slice(0, Math.max(1, room - 1))}\u2026` : line;
      const place = { class: n ? "" : "size", x: box.x + 7, y: box.y + 16 + 16 * n };
      svg.append(draw("text", place, cut));
    });
  }

  function drawMap() {
    const svg = $("map").querySelector("svg");
    const { width, height } = $("map").getBoundingClientRect();
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.replaceChildren();
    const groups = tiles();
    squarify(groups, { x: 0, y: 0, w: width, h: height });
    for (const group of groups) {
      squarify(group.items, group.box);
      for (const { i, bytes, more, box } of group.items) {
        const size = { x: box.x, y: box.y, width: Math.max(0, box.w), height: Math.max(0, box.h) };
        const rect = draw("rect", { ...size, class: `r-${group.role.color}${more ? " more" : ""}` });
        if (!more) rect.dataset.i = i;
        svg.append(rect);
        label(svg, box, more
          ? [`and ${formatCount(more)} more`, formatSize(bytes)]
          : [formatSize(bytes), nameOf(i)]);
      }
    }
    markMap();
  }

  function markMap() {
    const row = state.hover ?? (state.pinned ? state.active : null);
    const marked = row ? row.id : -1;
    for (const rect of $("map").querySelectorAll("rect[data-i]")) {
      const i = Number(rect.dataset.i);
      rect.classList.toggle("off", state.hidden.has(b.role[i]));
      rect.classList.toggle("on", state.rowOf[i] === marked);
    }
  }

  // --- the inspector: one row in full --------------------------------------------------------------

  const fullName = (i) => text(b.name, i) || text(b.instruction, i) || "all buffers below 16 KiB";

  /** The name without the outermost jit, which all have, and of several without their numbers. */
  function nameOf(i, several = false) {
    const name = fullName(i).replace(/^jit\([^()/]*\)\/(?:jit\(main\)\/)?/, "");
    return several ? name.replace(/\d+/g, "*") : name;
  }

  function lives(row) {
    const i = row.members[0];
    if (!points) return "not known";
    if (b.start[i] < 0) return "the whole program";
    return `points ${formatCount(from(i))} to ${formatCount(until(i))} of ${formatCount(points)}`;
  }

  function facts(row) {
    const i = row.members[0];
    const several = row.members.length;
    const total = several > 1 ? `${formatCount(several)} × ${formatSize(b.size[i])} = ` : "";
    const times = b.unpadded[i] > 0 ? ` (${(b.size[i] / b.unpadded[i]).toFixed(1)}x)` : "";
    const pad = padding(i) ? `${formatSize(padding(i))}${times}` : "none";
    return [
      ["Size", `${total}${formatSize(row.size)} (${formatCount(row.size)} bytes)`],
      ["Share", `${((100 * row.size) / (data.total || 1)).toFixed(1)} % of the peak`],
      ["Padding", several > 1 && padding(i) ? `${pad} each` : pad],
      ["Shape", text(b.shape, i)],
      ["Lives", `${lives(row)}${several > 1 && b.start[i] >= 0 ? ", the first of them" : ""}`],
      ["Made by", [text(b.opcode, i), text(b.instruction, i)].filter(Boolean).join(" ")],
      ["Source", text(b.source, i)],
    ].filter(([, value]) => value);
  }

  function inspect() {
    const row = state.hover ?? state.active;
    const panel = $("inspector");
    if (!row) { panel.replaceChildren(make("p", { class: "muted" }, "No buffer matches.")); return; }
    const i = row.members[0];
    const role = data.roles[b.role[i]];
    const badge = make("p", { class: `badge r-${role.color}` }, make("span", { class: "dot" }), role.name);
    const list = make("dl");
    for (const [name, value] of facts(row)) list.append(make("dt", {}, name), make("dd", {}, value));
    const frames = data.stacks[b.stack[i]].map((frame) => make("li", {}, data.strings[frame]));
    const close = make("button", { type: "button", class: "close", "aria-label": "Close" }, "\u00d7");
    close.addEventListener("click", () => pin(false));
    panel.replaceChildren(badge, make("h3", {}, fullName(i)), list, close);
    if (frames.length) {
      panel.append(make("details", {}, make("summary", {}, "Stack, innermost first"), make("ol", { class: "mono" }, ...frames)));
    }
  }

  // --- the table ------------------------------------------------------------------------------------

  const scroll = $("scroll");
  const table = $("table");
  const body = table.tBodies[0];

  function lifeline(row) {
    const i = row.members[0];
    const svg = draw("svg", { viewBox: "0 0 112 12", preserveAspectRatio: "none", "aria-hidden": "true", class: `r-${data.roles[b.role[i]].color}` });
    const x = (edge) => (112 * edge) / points;
    const width = Math.max(2, x(until(i) + 1) - x(from(i)));
    svg.append(draw("rect", { class: "track", x: 0, y: 5, width: 112, height: 2 }));
    svg.append(draw("rect", { class: "life", x: x(from(i)), y: 2, width, height: 8, rx: 2 }));
    svg.append(draw("rect", { class: "tick", x: x(data.peak + 0.5) - 0.5, y: 0, width: 1, height: 12 }));
    return svg;
  }

  function cell(name, content) {
    const td = make("td", { class: name, role: "gridcell" });
    if (content !== null) td.append(content);
    return td;
  }

  function tableRow(row, index) {
    const i = row.members[0];
    const role = data.roles[b.role[i]];
    const pad = row.padding;
    const several = row.members.length > 1;
    const tr = make("tr", { role: "row", id: `row-${row.id}`, class: `r-${role.color}`, "aria-rowindex": index + 2 });
    tr.dataset.id = row.id;
    const life = cell("c-life", points ? lifeline(row) : "");
    life.setAttribute("aria-label", lives(row));
    const kind = cell("c-role", make("span", { class: "dot", "aria-hidden": "true" }));
    kind.append(role.name);
    tr.append(
      cell("c-size right", formatSize(row.size)),
      cell("c-each", several ? `${formatCount(row.members.length)} × ${formatSize(b.size[i])}` : ""),
      kind,
      cell("c-name", nameOf(i, several)),
      cell("c-shape", text(b.shape, i).replace(/\{[^{}]*\}/g, "")),
      cell("c-source", text(b.source, i)),
      cell(`c-padding right${pad > row.size / 6 ? " big" : ""}`, pad ? formatSize(pad) : "\u2013"),
      life,
      cell("c-order right", formatCount(row.order + 1)),
    );
    tr.cells[2].title = role.name;
    tr.cells[3].title = fullName(i);
    tr.setAttribute("aria-selected", String(row === state.active));
    tr.classList.toggle("active", row === state.active);
    tr.classList.toggle("hover", row === state.hover);
    return tr;
  }

  const rowHeight = () => parseFloat(getComputedStyle(document.documentElement).getPropertyValue("--row"));

  function gap(rows) {
    const tr = make("tr", { class: "gap", "aria-hidden": "true" });
    const td = make("td", { colspan: 9 });
    td.style.height = `${rows * rowHeight()}px`;
    tr.append(td);
    return tr;
  }

  /** Put the rows into the document that can be seen, and gaps in place of all others. */
  function drawTable() {
    const height = rowHeight();
    const seen = Math.ceil(scroll.clientHeight / height) + 2 * SPARE_ROWS;
    const first = Math.max(0, Math.min(Math.floor(scroll.scrollTop / height) - SPARE_ROWS, state.shown.length - seen));
    const last = Math.min(state.shown.length, first + seen);
    const rows = state.shown.slice(first, last).map((row, n) => tableRow(row, first + n));
    body.replaceChildren(gap(first), ...rows, gap(state.shown.length - last));
    table.setAttribute("aria-rowcount", state.shown.length + 1);
    const active = state.active && $(`row-${state.active.id}`);
    if (active) table.setAttribute("aria-activedescendant", active.id);
    else table.removeAttribute("aria-activedescendant");
  }

  function reveal(index) {
    const height = rowHeight();
    const head = table.tHead.offsetHeight;
    const top = index * height;
    if (top < scroll.scrollTop) scroll.scrollTop = top;
    const low = top + height + head - scroll.clientHeight;
    if (low > scroll.scrollTop) scroll.scrollTop = low;
  }

  // --- what the user does -----------------------------------------------------------------------------

  function mark() {
    for (const tr of body.querySelectorAll("tr[data-id]")) {
      const row = state.rows[tr.dataset.id];
      tr.classList.toggle("hover", row === state.hover);
      tr.classList.toggle("active", row === state.active);
      tr.setAttribute("aria-selected", String(row === state.active));
    }
    drawLifetimes();
    markMap();
    inspect();
  }

  /** Follow the pointer; while keys are used, not where only the page moves under it. */
  function point(event, row) {
    if (state.keys && !event.movementX && !event.movementY) return;
    state.keys = false;
    hover(row);
  }

  function hover(row) {
    if (row === state.hover) return;
    state.hover = row;
    mark();
  }

  function activate(row) {
    state.active = row;
    state.hover = null;
    reveal(state.shown.indexOf(row));
    drawTable();
    pin(true);
  }

  /** Keep showing the selected row's buffers while nothing is hovered, or stop that. */
  function pin(on) {
    state.pinned = on;
    $("explorer").classList.toggle("pinned", on);
    mark();
  }

  /** Select, sort and draw again, from the first row on. */
  function refresh() {
    select();
    scroll.scrollTop = 0;
    drawTable();
    mark();
  }

  function sortBy(key) {
    const same = state.sort === key;
    state.ascending = same ? !state.ascending : key === "order";
    state.sort = key;
    for (const th of table.querySelectorAll("th[data-key]")) {
      const direction = state.ascending ? "ascending" : "descending";
      th.setAttribute("aria-sort", th.dataset.key === key ? direction : "none");
    }
    refresh();
  }

  function onKey(event) {
    const page = Math.max(1, Math.floor(scroll.clientHeight / rowHeight()) - 2);
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key === "Escape") { pin(false); return; }
    if (!(event.key in moves) || !state.shown.length) return;
    event.preventDefault();
    state.keys = true;
    const at = state.shown.indexOf(state.active);
    activate(state.shown[Math.max(0, Math.min(state.shown.length - 1, at + moves[event.key]))]);
  }

  const rowAt = (event) => {
    const tr = event.target.closest("tr[data-id]");
    return tr ? state.rows[tr.dataset.id] : null;
  };
  const tileAt = (event) => {
    const i = event.target.dataset?.i;
    return i === undefined ? null : state.rows[state.rowOf[i]];
  };

  function toggleRole(chip) {
    const role = Number(chip.dataset.role);
    const on = state.hidden.has(role);
    if (on) state.hidden.delete(role); else state.hidden.add(role);
    chip.setAttribute("aria-pressed", String(on));
    refresh();
  }

  function listen() {
    for (const th of table.querySelectorAll("th[data-key]")) {
      th.querySelector("button").addEventListener("click", () => sortBy(th.dataset.key));
    }
    for (const chip of document.querySelectorAll(".chip")) {
      chip.addEventListener("click", () => toggleRole(chip));
    }
    body.addEventListener("mousemove", (event) => point(event, rowAt(event)));
    body.addEventListener("mouseleave", () => hover(null));
    body.addEventListener("click", (event) => { const row = rowAt(event); if (row) activate(row); });
    $("map").addEventListener("mousemove", (event) => point(event, tileAt(event)));
    $("map").addEventListener("mouseleave", () => hover(null));
    $("map").addEventListener("click", (event) => {
      const row = tileAt(event);
      if (row && state.shown.includes(row)) activate(row);
    });
    table.addEventListener("keydown", onKey);
    scroll.addEventListener("scroll", () => requestAnimationFrame(drawTable), { passive: true });
    $("filter").addEventListener("input", (event) => {
      state.words = event.target.value.trim().toLowerCase();
      refresh();
    });
    $("fold").addEventListener("change", () => { setRows(); refresh(); });
    if (points) {
      $("chart").addEventListener("pointermove", readChart);
      $("chart").addEventListener("pointerleave", leaveChart);
    }
    new ResizeObserver(() => { drawChart(); drawMap(); drawTable(); }).observe($("explorer"));
  }

  setRows();
  select();
  drawChart();
  drawMap();
  drawTable();
  inspect();
  listen();
})();
