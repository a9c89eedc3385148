// The page as text, where it cannot be drawn: an empty page would help nobody.

import { $, make } from "./dom.mjs";

const plainText = document.querySelector("noscript").textContent;

/** Show the text that browsers without script show. */
export function showText() {
  const { body } = new DOMParser().parseFromString(plainText, "text/html");
  $("report").replaceChildren(make("pre", { tabindex: 0 }, body.textContent));
}

/** Draw the page of some data, given as JSON or a promise of it; its text if that fails. */
export function drawOrShowText(draw, json) {
  Promise.resolve(json).then((text) => draw(JSON.parse(text))).catch((error) => {
    showText();
    throw error; // whoever looks for the reason finds it
  });
}
