// The widths of the table's columns of words.

import { $, make } from "./dom.mjs";
import { withoutLayout } from "./names.mjs";

/** A function that measures texts in cells of a column, in pixels. */
function measure(kind) {
  const cell = make("td", { class: kind });
  $("table").tBodies[0].append(make("tr", {}, cell));
  const { fontSize, fontFamily } = getComputedStyle(cell);
  cell.parentElement.remove();
  const context = document.createElement("canvas").getContext("2d");
  context.font = `${fontSize} ${fontFamily}`;
  return (text) => context.measureText(text).width;
}

/** Make the columns of words as wide as their longest one, within bounds. */
export function fitColumns({ b }) {
  // In these columns all letters have one width.
  const longest = (column) => [...new Set(b[column])].map((n) => withoutLayout(b.strings[n]))
    .reduce((most, text) => (text.length > most.length ? text : most), "");
  const fit = (kind, texts, least, most) => {
    const widest = texts.map(measure(`c-${kind}`)).reduce((high, n) => Math.max(high, n), 0);
    const width = Math.max(least, Math.min(most, Math.ceil(widest) + 16));
    $("table").style.setProperty(`--${kind}-width`, `${width}px`);
  };
  fit("role", b.roles.map(({ name }) => name), 74, 280);
  fit("shape", [longest("shape")], 91, 230);
  fit("source", [longest("source")], 99, 245);
}
