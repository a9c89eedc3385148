// The inspector: the row in focus, in full.

import { $, make } from "./dom.mjs";
import { formatCount, formatSize, plural } from "./format.mjs";
import { shortFrame } from "./names.mjs";

/** The program points at which a row's first buffer is live, as text. */
export function lifetimeText(b, row) {
  const i = row.members[0];
  if (!b.points || b.isSum(i)) return "unknown";
  if (b.start[i] === null) return "the whole program";
  const [from, until, points] = [b.from(i), b.until(i), b.points].map(formatCount);
  return `points ${from} to ${until} of ${points}`;
}

/** What is known of a row, as [name, value]; `whole` are the bytes live at this moment. */
export function rowFacts(b, row, { bytes: whole, moment }) {
  const i = row.members[0];
  const several = row.members.length;
  const size = b.size_bytes[i];
  const total = several > 1 ? `${formatCount(several)} \u00d7 ${formatSize(size)} = ` : "";
  const times = b.unpadded_bytes[i] > 0 ? ` (${(size / b.unpadded_bytes[i]).toFixed(1)}x)` : "";
  const padding = b.padding(i) ? `${formatSize(b.padding(i))}${times}` : "none";
  const first = several > 1 && b.start[i] !== null ? ", the first of them" : "";
  return [
    ["Size", `${total}${formatSize(row.size)} (${plural(row.size, "byte")})`],
    ["Share", `${((100 * row.size) / (whole || 1)).toFixed(1)}% of ${moment}`],
    ["Padding", several > 1 && b.padding(i) ? `${padding} each` : padding],
    ["Shape", b.text("shape", i)],
    ["Lifetime", `${lifetimeText(b, row)}${first}`],
    ["Instruction", [b.text("opcode", i), b.text("instruction", i)].filter(Boolean).join(" ")],
    ["Source line", b.text("source", i)],
  ].filter(([, value]) => value);
}

/** The card of the inspector. */
export const inspector = () =>
  make("div", {
    class: "card inspector", id: "inspector", role: "region", tabindex: 0,
    "aria-label": "The selected buffers", "aria-live": "polite",
  });

export function drawInspector(view) {
  const row = view.hovered ?? view.active;
  const panel = $("inspector");
  if (!row) {
    panel.replaceChildren(make("p", { class: "muted" }, "No buffer matches."));
    return;
  }
  const { b } = view;
  const i = row.members[0];
  const role = b.roleOf(i).name;
  const dot = make("span", { class: "dot" });
  const group = view.groupWith(i);
  const byRole = view.by === "role";
  const name = byRole || !group ? role : shortFrame(group.name);
  const badge = make("p", { class: `badge ${group?.color ?? "r-other"}` }, dot, name);
  const list = make("dl");
  const moment = view.isPeak ? "the peak" : "this moment";
  const facts = rowFacts(b, row, { bytes: view.liveBytes, moment });
  for (const [label, value] of [...facts, ...(byRole ? [] : [["Role", role]])]) {
    list.append(make("dt", {}, label), make("dd", {}, value));
  }
  const close = make("button", { type: "button", class: "close", "aria-label": "Close" }, "\u00d7");
  close.addEventListener("click", () => view.pin(false));
  panel.replaceChildren(badge, make("h3", {}, b.fullName(i)), list, close);
  const frames = b.stackOf(i).map((frame) => make("li", {}, frame));
  if (frames.length) {
    const title = make("summary", {}, "Stack, innermost first");
    panel.append(make("details", {}, title, make("ol", { class: "mono" }, frames)));
  }
}
