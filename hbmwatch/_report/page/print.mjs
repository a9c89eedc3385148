// Printing: the width of the paper, and only the first rows of a long table.

import { $ } from "./dom.mjs";

const WIDTH = "700px"; // A4 without its margins
const ROWS = 100;

/** Draw for paper before printing, and for the screen after it. */
export function listenToPrinting(view) {
  const redraw = (rows) => {
    view.printed = rows;
    $("explorer").style.width = rows ? WIDTH : "";
    $("explorer").classList.toggle("printed", Boolean(rows));
    view.draw();
  };
  addEventListener("beforeprint", () => redraw(ROWS));
  addEventListener("afterprint", () => redraw(0));
}
