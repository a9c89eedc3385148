// Findings mark their buffers in chart, map and table.

import { $ } from "./dom.mjs";

/** The buffers of the findings, by the instructions that these name. */
function findingsOf(b, findings) {
  const numbers = new Map();
  for (let i = 0; i < b.count; i += 1) {
    const name = b.text("instruction", i);
    if (name && !numbers.has(name)) numbers.set(name, i);
  }
  return findings.map(({ buffers }, n) => {
    const members = (buffers ?? []).map((name) => numbers.get(name)).filter((i) => i !== undefined);
    return { n, members, set: new Set(members) };
  });
}

/** A finding marks its buffers while the pointer is on it or it has the focus, or after a click. */
export function listenToFindings(view, findings) {
  const found = findingsOf(view.b, findings);
  document.querySelectorAll(".findings > li").forEach((card, n) => {
    if (!found[n].members.length) return;
    const button = card.querySelector(".marks");
    button.hidden = false;
    card.addEventListener("mouseenter", () => view.pointTo(found[n]));
    card.addEventListener("mouseleave", () => view.pointTo(null));
    button.addEventListener("focus", () => view.pointTo(found[n]));
    button.addEventListener("blur", () => view.pointTo(null));
    button.addEventListener("click", () => {
      view.keep(view.kept?.n === n ? null : found[n]);
      if (view.kept) $("explorer").scrollIntoView({ block: "start" });
    });
  });
}
