// What the reader chooses: a grouping, a group, groups to hide, words, and whether to fold.

import { groupingChoice } from "./choice.mjs";
import { copyButtons } from "./copy.mjs";
import { $, make } from "./dom.mjs";
import { formatCount, formatSize, plural } from "./format.mjs";
import { groupings } from "./groups.mjs";
import { shortFrame } from "./names.mjs";

const CHIPS = 14; // the other groups have no button

/** The control for grouping, and the way to the group that is zoomed into. */
export function grouping() {
  const { labelled } = groupingChoice(groupings());
  const way = make("nav", { id: "way", "aria-label": "Zoom" });
  const chips = { class: "legend", id: "legend", role: "group", "aria-label": "Groups to show" };
  return [make("div", { class: "tools" }, labelled, way), make("div", chips)];
}

/** The filter, the switch for folding, how many buffers are listed, and copying. */
export function tools() {
  const filter = make("input", {
    id: "filter", type: "search", autocomplete: "off", spellcheck: "false",
    placeholder: "Filter by name, line, shape",
    "aria-label": "Filter the buffers by name, line or shape",
  });
  const fold = make("input", { id: "fold", type: "checkbox" });
  const label = make("label", {}, fold, " equal buffers in one row");
  const count = make("output", { id: "count", for: "filter fold" });
  return make("div", { class: "tools" }, filter, label, count, ...copyButtons());
}

/** Say how many buffers the table lists, and their bytes. */
export function drawCount(view) {
  const { b, shown } = view;
  const bytes = shown.reduce((sum, row) => sum + row.size, 0);
  const all = shown.reduce((sum, row) => sum + row.members.length, 0);
  const rest = shown.some((row) => row.members[0] === b.rest);
  const buffers = `${plural(all - (rest ? 1 : 0), "buffer")}${rest ? " and the rest" : ""}`;
  $("count").textContent = `${buffers}, ${formatSize(bytes)}`;
}

function chip(view, { id, name, color }) {
  const button = make("button", {
    type: "button", class: `chip ${color}`, title: `${name}: show or hide`, "data-id": id,
  });
  button.append(make("span", { class: "dot" }), make("span", { class: "word" }, shortFrame(name)));
  button.append(make("span", { class: "number" }));
  button.addEventListener("click", () => {
    if (!view.hidden.delete(id)) view.hidden.add(id);
    view.refresh();
  });
  return button;
}

/** The buttons of the groups; they stay the same elements, so that the focus stays. */
function drawChips(view) {
  const { groups, groupsKey, groupBytes, hidden } = view;
  if ($("legend").dataset.key !== groupsKey) {
    const chips = groups.slice(0, CHIPS).map((group) => chip(view, group));
    const more = groups.length - chips.length;
    if (more > 0) chips.push(make("span", { class: "muted" }, `and ${formatCount(more)} more`));
    $("legend").replaceChildren(...chips);
    $("legend").dataset.key = groupsKey;
  }
  for (const button of $("legend").querySelectorAll("button")) {
    const id = Number(button.dataset.id);
    button.setAttribute("aria-pressed", String(!hidden.has(id)));
    button.lastChild.textContent = formatSize(groupBytes.get(id) ?? 0);
  }
}

/** The state of the controls: grouping, way, groups, words, folding. */
export function drawTools(view) {
  const { b, zoomed, by } = view;
  $("by").value = by;
  if ($("filter").value !== view.words) $("filter").value = view.words;
  $("fold").checked = view.folded;
  drawChips(view);
  $("way").replaceChildren(...(zoomed.id ? wayTo(view, zoomed) : []));
  const where = !view.heap.length || view.isPeak ? "" : `at point ${formatCount(view.point)}`;
  const moment = where || (view.heap.length ? "at the peak" : "listed in the error message");
  $("h-buffers").textContent = `Buffers ${moment}`;
  $("cut").textContent = b.peak_count < b.op_count
    ? `the ${formatCount(b.peak_count)} largest of ${formatCount(b.op_count)} at the peak` : "";
}

/** A button for each group on the way to the one that is zoomed into. */
function wayTo(view, zoomed) {
  const nodes = [];
  for (let node = zoomed; node; node = node.parent) nodes.unshift(node);
  return nodes.flatMap((node, n) => {
    const name = node.id ? shortFrame(node.name) : "all";
    if (n === nodes.length - 1) return [make("b", {}, name)];
    const button = make("button", { type: "button", class: "link" }, name);
    button.addEventListener("click", () => {
      view.zoomTo(node);
      $("map").focus({ preventScroll: true });
    });
    return [button, " \u203a "];
  });
}

export function listenToTools(view) {
  $("by").addEventListener("change", (event) => view.groupBy(event.target.value));
  $("filter").addEventListener("input", (event) => {
    view.words = event.target.value;
    view.refresh();
  });
  $("fold").addEventListener("change", (event) => {
    view.folded = event.target.checked;
    view.refresh();
  });
}
