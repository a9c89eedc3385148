// Elements. Text from the report goes in as text nodes, never as markup.

const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

/** An HTML element. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** An SVG element. */
export function draw(tag, attributes = {}, content = null) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (content !== null) element.textContent = content;
  return element;
}

/** An SVG image that a screen reader reads as its label. */
export const picture = (label) => draw("svg", { role: "img", "aria-label": label });
