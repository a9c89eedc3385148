// The control for how buffers are grouped, on the page of a report and on that of a comparison.

import { make } from "./dom.mjs";

/** The control with its label, for groupings as [value, label]. */
export function groupingChoice(groupings) {
  const options = groupings.map(([value, label]) => make("option", { value }, label));
  const select = make("select", { id: "by" }, ...options);
  return { select, labelled: make("label", { class: "by" }, "Group by ", select) };
}
