// What changed at the peak, by group.

import { listenToAddress, readAddress, writeAddress } from "./address.mjs";
import { signed, size, table } from "./cells.mjs";
import { groupingChoice } from "./choice.mjs";
import { draw, make } from "./dom.mjs";
import { formatCount, formatSize } from "./format.mjs";

const BAR = 90;
const NO_BREAK = "\u00a0";

/** Count and size of buffers; a line may end between the two. */
function amount([count, bytes]) {
  if (!count) return "none";
  const size = formatSize(bytes).replace(" ", NO_BREAK);
  return count === 1 ? size : `${formatCount(count)}${NO_BREAK}buffers, ${size}`;
}

function stateOf({ before, after }) {
  if (!before[0]) return "new";
  if (!after[0]) return "gone";
  return before[2] === after[2] || !after[2] ? "" : `${before[2]} to ${after[2]}`;
}

/** A bar as long as a change, compared with the largest one. */
function bar(delta, most) {
  const picture = draw("svg", {
    class: "bar", viewBox: `0 0 ${BAR} 5`, width: BAR, height: 5, preserveAspectRatio: "none",
    "aria-hidden": "true",
  });
  const width = Math.max(1, (BAR * Math.abs(delta)) / most);
  picture.append(draw("rect", { x: BAR - width, width, height: 5 }));
  return picture;
}

function changeRow(row, most) {
  const delta = row.after[1] - row.before[1];
  const where = [row.kind, row.source].filter(Boolean).join(", ");
  const state = stateOf(row);
  const change = size(signed(delta), "delta");
  change.append(bar(delta, most));
  return make("tr", { class: delta > 0 ? "grew" : "" }, change,
    make("th", { scope: "row" }, row.name, ...[where, state].filter(Boolean).map((text) => make(
      "div", { class: "state" }, text,
    ))),
    size(amount(row.before), "amount"), size(amount(row.after), "amount"));
}

function groupTable({ label, rows, more, more_bytes: moreBytes }) {
  if (!rows.length) return make("p", {}, "No group changed.");
  const most = Math.max(1, ...rows.map(({ before, after }) => Math.abs(after[1] - before[1])));
  const columns = [["change", "size"], [label, ""], ["before", "size"], ["after", "size"]];
  const rest = `and ${formatCount(more)} more (${signed(moreBytes)})`;
  const foot = more ? [make("tr", {}, make("td", { colspan: 4 }, rest))] : [];
  return table(columns, rows.map((row) => changeRow(row, most)), foot, "changes");
}

/** The groups of buffers that changed, by one of several groupings, which the address holds. */
export function groups({ groupings, by }) {
  const { select, labelled } = groupingChoice(groupings.map(({ name, label }) => [name, label]));
  const shown = make("div", { id: "groups" });
  const view = {
    by,
    state: () => (view.by === by ? [] : [["by", view.by]]),
    restore(fields) {
      const wanted = new Map(fields).get("by");
      view.by = groupings.some(({ name }) => name === wanted) ? wanted : by;
    },
    draw() {
      select.value = view.by;
      shown.replaceChildren(groupTable(groupings.find(({ name }) => name === view.by)));
    },
  };
  select.addEventListener("change", () => {
    view.by = select.value;
    view.draw();
    writeAddress(view);
  });
  view.restore(readAddress(location.hash));
  view.draw();
  listenToAddress(view);
  return make("section", { class: "card long" },
    make("h2", {}, "What changed at the peak"),
    make("div", { class: "tools" }, labelled),
    shown);
}
