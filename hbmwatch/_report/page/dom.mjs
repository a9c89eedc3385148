// Elements. Text from the report goes in as text nodes, never as markup.

const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/;

/** The words of a text, with a function applied to those that are read from right to left. */
function isolated(text, isolate) {
  if (!RIGHT_TO_LEFT.test(text)) return [text];
  return text.split(/(\s+)/).map((word) => (RIGHT_TO_LEFT.test(word) ? isolate(word) : word));
}

/** A word that does not take along the figures around it: "5 MiB" stays as it is. */
function ownWord(word) {
  const element = document.createElement("bdi");
  element.dir = "ltr"; // paths and names of files begin at the left
  element.textContent = word;
  return element;
}

/** An HTML element. A child may be a list: a call cannot have many thousands of arguments. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  for (const child of children.flat()) {
    element.append(...(typeof child === "string" ? isolated(child, ownWord) : [child]));
  }
  return element;
}

/** An SVG element. */
export function draw(tag, attributes = {}, content = null) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  const ownText = (word) => `\u2066${word}\u2069`; // SVG has no <bdi>
  if (content !== null) element.textContent = isolated(content, ownText).join("");
  return element;
}

/** An SVG image that a screen reader reads as its label. */
export const picture = (label) => draw("svg", { role: "img", "aria-label": label });
