// The rows of the table as text and as CSV, for the clipboard.

import { $, make } from "./dom.mjs";
import { formatCount, formatSize, plural } from "./format.mjs";
import { withoutLayout } from "./names.mjs";

const HEADS = [
  "bytes", "count", "role", "name", "shape", "source line", "padding bytes", "from", "to",
];

function values(b, row) {
  const i = row.members[0];
  const several = row.members.length > 1;
  const lifetime = b.points && !b.isSum(i) ? [b.from(i), b.until(i)] : ["", ""];
  const texts = [b.roleOf(i).name, b.name(i, several), withoutLayout(b.text("shape", i))];
  return [row.size, row.members.length, ...texts, b.text("source", i), row.padding, ...lifetime];
}

// A spreadsheet takes a text that begins in one of these as a formula.
const quoted = (value) => {
  const text = /^[=+\-@]/.test(value) ? `'${value}` : String(value);
  return /[",\n]/.test(text) ? `"${text.replaceAll("\"", "\"\"")}"` : text;
};

/** The shown rows as CSV, sizes in bytes. */
export function asCsv({ b, shown }) {
  const lines = shown.map((row) => values(b, row).map(quoted).join(","));
  return `${[HEADS.join(","), ...lines].join("\n")}\n`;
}

/** The shown rows as text in columns, for a mail or an issue. */
function asText({ b, shown, point, isPeak, heap }) {
  const moment = heap.length ? ` at point ${formatCount(point)}${isPeak ? ", the peak" : ""}` : "";
  const cells = shown.map((row) => {
    const [size, count, role, name, shape, source] = values(b, row);
    const each = count > 1 ? `${count} x ${formatSize(b.size_bytes[row.members[0]])}` : "";
    return [formatSize(size), each, role, name, shape, source];
  });
  const longest = (n) => cells.reduce((most, row) => Math.max(most, row[n].length), 0);
  const widths = [0, 1, 2, 3, 4].map(longest);
  const lines = cells.map((row) => row.map((cell, n) =>
    (n < 2 ? cell.padStart(widths[n]) : cell.padEnd(widths[n] ?? 0))).join("  ").trimEnd());
  const total = formatSize(shown.reduce((sum, row) => sum + row.size, 0));
  return `${[`${document.title}${moment}: ${total}`, ...lines].join("\n")}\n`;
}

/** The buttons that copy. */
export const copyButtons = () => [
  make("button", { type: "button", class: "copy", id: "copy-text" }, "Copy as text"),
  make("button", { type: "button", class: "copy", id: "copy-csv" }, "Copy as CSV"),
  make("output", { id: "copied", class: "muted" }),
];

/** Put a text on the clipboard; in a frame without that permission, in the older way. */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = make("textarea", { readonly: "" });
    area.value = text;
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    return copied;
  }
}

export function listenToCopy(view) {
  for (const [id, write] of [["copy-text", asText], ["copy-csv", asCsv]]) {
    $(id).addEventListener("click", async () => {
      const copied = await copy(write(view));
      $("copied").textContent = copied
        ? `${plural(view.shown.length, "row")} copied` : "the browser does not allow copying";
      $(id).focus();
    });
  }
}
