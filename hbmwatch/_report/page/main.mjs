// The page: its sections, made of the report, and the explorer of the buffers.

import { $, make } from "./dom.mjs";
import { explore, explorer } from "./explorer.mjs";
import { drawOrShowText, showText } from "./fallback.mjs";
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

const { type, textContent } = $("data");
const isPlain = type === "application/json";
if (!isPlain && !("DecompressionStream" in window)) showText();
else {
  const text = isPlain ? textContent : inflate(textContent);
  drawOrShowText((data) => show(readReport(data)), text);
}
