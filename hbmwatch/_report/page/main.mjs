// The page: its sections, made of the report, and the explorer of the buffers.

import { $, make } from "./dom.mjs";
import { explore, explorer } from "./explorer.mjs";
import { readReport } from "./report.mjs";
import { device, findings, foot, head, message, paths, sentences } from "./sections.mjs";

function show(data) {
  const hasBuffers = data.buffers.size_bytes.length > 0;
  if (hasBuffers) {
    document.body.prepend(make("a", { class: "skip", href: "#buffers" }, "Skip to the buffers"));
  }
  $("report").append(
    head(data),
    ...findings(data),
    ...(hasBuffers ? [explorer(data)] : []),
    ...paths(data),
    ...device(data),
    ...sentences("notes", "Notes", data.notes),
    ...sentences("missing", "Not available", data.missing),
    ...message(data),
    foot(data),
  );
  if (hasBuffers) explore(data);
}

/** The text of the page's data; that of a large report is deflated, in base 64. */
async function inflate(packed) {
  const bytes = Uint8Array.from(atob(packed), (char) => char.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).text();
}

/** The report as text, where its data cannot be unpacked. */
function showText() {
  const text = document.querySelector("noscript").textContent;
  const { body } = new DOMParser().parseFromString(text, "text/html");
  $("report").append(make("pre", {}, body.textContent));
}

const data = $("data");
if (data.type === "application/json") show(readReport(JSON.parse(data.textContent)));
else if (!("DecompressionStream" in window)) showText();
else inflate(data.textContent).then((text) => show(readReport(JSON.parse(text))));
