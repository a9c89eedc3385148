// What narrows the table: roles, the filter, and whether equal buffers are folded.

import { $, make } from "./dom.mjs";
import { formatCount, formatSize } from "./format.mjs";
import { colorOf } from "./roles.mjs";

/** One button for each role. */
export function legend(roles) {
  const chips = roles.map(({ name, meaning, bytes }, n) => {
    const chip = { type: "button", "data-role": n, "aria-pressed": "true", title: meaning };
    const size = make("span", { class: "number" }, formatSize(bytes));
    const dot = make("span", { class: "dot" });
    return make("button", { ...chip, class: `chip ${colorOf(name)}` }, dot, `${name} `, size);
  });
  return make("div", { class: "legend", role: "group", "aria-label": "Roles to show" }, ...chips);
}

/** The filter, the switch for folding, and how many buffers are listed. */
export function tools() {
  const filter = make("input", {
    id: "filter", type: "search", autocomplete: "off", spellcheck: "false",
    placeholder: "Filter by name, line, shape",
    "aria-label": "Filter the buffers by name, line or shape",
  });
  const fold = make("input", { id: "fold", type: "checkbox", checked: "" });
  const label = make("label", {}, fold, " equal buffers in one row");
  const count = make("output", { id: "count", for: "filter fold" });
  return make("div", { class: "tools" }, filter, label, count);
}

/** Say how many buffers the table lists, and their bytes. */
export function drawCount(view) {
  const bytes = view.shown.reduce((sum, row) => sum + row.size, 0);
  const buffers = view.shown.reduce((sum, row) => sum + row.members.length, 0);
  $("count").textContent = `${formatCount(buffers)} buffers, ${formatSize(bytes)}`;
}

function toggleRole(view, chip) {
  const role = Number(chip.dataset.role);
  const wasHidden = view.hiddenRoles.delete(role);
  if (!wasHidden) view.hiddenRoles.add(role);
  chip.setAttribute("aria-pressed", String(wasHidden));
  view.refresh();
}

export function listenToTools(view) {
  for (const chip of document.querySelectorAll(".chip")) {
    chip.addEventListener("click", () => toggleRole(view, chip));
  }
  $("filter").addEventListener("input", (event) => {
    view.words = event.target.value;
    view.refresh();
  });
  $("fold").addEventListener("change", (event) => {
    view.fold(event.target.checked);
    view.refresh();
  });
}
