// Tables of the page of a comparison.

import { make } from "./dom.mjs";
import { formatSize } from "./format.mjs";

/** A change of bytes, with its sign. */
export const signed = (bytes) => `${bytes >= 0 ? "+" : ""}${formatSize(bytes)}`;

/** A table cell, right-aligned if it is a size. */
export const size = (text, more = "") => make("td", { class: `size ${more}` }, text);

/** A table that scrolls where it is too wide; `kind` is a class of it. */
export function table(headings, rows, foot = [], kind = "") {
  const head = make("tr", {}, ...headings.map(([text, kind]) => make("th", {
    scope: "col", class: kind,
  }, text)));
  return make("div", { class: "wide", tabindex: 0 }, make("table", { class: `diff ${kind}` },
    make("thead", {}, head), make("tbody", {}, rows), make("tfoot", {}, foot)));
}
