// The sections of the page, each made of a part of the report.

import { budget } from "./budget.mjs";
import { draw, make } from "./dom.mjs";
import { formatCount, formatSize, plural } from "./format.mjs";

const CERTAINTIES = new Map(Object.entries({
  measured: "measured: the changed program was compiled",
  derived: "derived from this program\u2019s figures",
  hint: "a hint",
}));

function section(id, title, ...content) {
  const head = make("div", { class: "head" }, make("h2", { id: `h-${id}` }, title));
  return make("section", { id, "aria-labelledby": `h-${id}` }, head, ...content);
}

/** The title, the binding figures and the bar. */
export function head(data) {
  const { page, device, process_index: process } = data;
  const devices = device?.device_count ?? 1;
  const facts = ["hbmwatch"];
  if (process) facts.push(`process ${process}`);
  if (devices > 1) facts.push(`all sizes are per device (${formatCount(devices)} devices)`);
  const figures = page.figures.map(({ label, bytes, over }) => make(
    "div", { class: over ? "over" : "plain" }, make("dt", {}, label),
    make("dd", { class: "number", title: plural(bytes, "byte") }, formatSize(bytes)),
  ));
  return make(
    "header", {}, make("p", { class: "eyebrow" }, facts.join(" \u00b7 ")),
    make("h1", {}, page.title), make("dl", { class: "figures" }, ...figures), ...budget(data),
  );
}

function link(address) {
  if (!/^https?:\/\//.test(address)) return [];
  return [make("a", { href: address, rel: "noopener noreferrer" }, "documentation")];
}

/** Whether what a finding frees at most is what is needed. */
function enough(saved, needed) {
  if (!needed) return [];
  const verdict = saved >= needed ? "enough by itself" : "not enough by itself";
  return [make("span", { class: "needed" }, `${formatSize(needed)} must be freed: ${verdict}`)];
}

function findingCard(finding, n, needed) {
  const body = make(
    "div", { class: "body" }, make("p", { class: "remedy" }, finding.remedy),
    make("p", { class: "muted" }, finding.evidence),
  );
  const unhelpful = finding.will_not_help;
  if (unhelpful) body.append(make("p", {}, `Will not help: ${unhelpful}.`));
  const certainty = CERTAINTIES.get(finding.certainty) ?? finding.certainty;
  const trial = finding.change ? `change="${finding.change}"` : "variant=your_changed_step";
  const measure = finding.certainty === "measured" ? [] : [make("span", {}, `verify: ${trial}`)];
  const foot = [make("span", {}, certainty), ...measure, ...link(finding.link)];
  const marks = {
    type: "button", class: "marks", "data-n": n, "aria-pressed": "false", hidden: "",
  };
  foot.unshift(make("button", marks, "Mark its buffers"));
  body.append(make("p", { class: "foot" }, ...foot));
  const card = make("li", { class: "card" }, make("h3", {}, finding.title));
  if (finding.saves_bytes) {
    const size = formatSize(finding.saves_bytes);
    const label = make("span", {}, "frees up to");
    const known = enough(finding.saves_bytes, needed);
    card.append(make("p", { class: "saves number" }, label, ` ${size}`, ...known));
  }
  card.append(body);
  return card;
}

export function findings({ findings: found, verdict, page }) {
  if (!found.length) return [];
  const needed = page.figures.find(({ over }) => over)?.bytes;
  const list = found.map((finding, n) => findingCard(finding, n, needed));
  const cards = make("ol", { class: "findings" }, list);
  const together = verdict ? [make("p", { class: "verdict" }, verdict)] : [];
  return [section("findings", "What to try first", cards, ...together)];
}

/** A table of sizes with a bar each. */
function bars(sizes) {
  const most = sizes.reduce((high, [, bytes]) => Math.max(high, bytes), 1);
  const rows = sizes.map(([name, bytes]) => {
    const box = { viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" };
    const svg = draw("svg", box);
    const width = Math.max(0, (100 * bytes) / most).toFixed(2);
    svg.append(draw("rect", { width, height: 8, rx: 1 }));
    const size = make("td", { class: "right number" }, formatSize(bytes));
    const bar = make("td", { class: "bar" }, svg);
    return make("tr", {}, make("th", { scope: "row" }, name), bar, size);
  });
  return make("table", { class: "bars" }, make("tbody", {}, rows));
}

/** Bytes at the peak by pytree path; those by role are in the bar. */
export function paths({ rollup }) {
  const sizes = Object.entries(rollup.path ?? {});
  if (!sizes.length) return [];
  return [section("paths", "By pytree path", make("div", { class: "card" }, bars(sizes)))];
}

/** What the allocator says, other live arrays, and deleted arguments. */
export function device({ device: memory }) {
  if (memory === null) return [];
  const known = [
    ["limit", memory.limit_bytes],
    ["in use", memory.in_use_bytes],
    ["peak in use", memory.peak_in_use_bytes],
    ["largest free block", memory.largest_free_bytes],
  ].filter(([, bytes]) => bytes !== null);
  const live = memory.live.map((group) =>
    [`${group.count} x ${group.dtype}[${group.shape.join(",")}]`, group.size_bytes]);
  const card = make("div", { class: "card" });
  if (known.length) card.append(bars(known));
  if (live.length) {
    card.append(make("h3", {}, "Arrays that are not arguments of this call"), bars(live));
  }
  if (memory.deleted.length) {
    const gone = memory.deleted.flatMap((path) => [", ", make("code", {}, path)]).slice(1);
    card.append(make("h3", {}, "Donated arguments that have been deleted"), make("p", {}, gone));
  }
  if (!card.hasChildNodes()) return [];
  const kind = make("p", {}, memory.device_kind);
  const made = section("device", "On the device", card);
  made.querySelector(".head").append(kind);
  return [made];
}

/** A list of sentences. */
export function sentences(id, title, texts) {
  if (!texts.length) return [];
  const items = texts.map((text) => make("li", {}, text));
  return [section(id, title, make("ul", { class: "notes" }, items))];
}

/** The text of the error. */
export function message({ message: { text } }) {
  if (!text) return [];
  const pre = make("pre", { tabindex: 0, "aria-labelledby": "h-text" }, text);
  return [section("text", "Error message", pre)];
}

/** How to open the profile, the versions, and the fingerprint. */
export function foot({ page, versions }) {
  const lines = [];
  if (page.command) {
    lines.push(["Profile, for XProf\u2019s Memory Viewer: ", make("code", {}, page.command)]);
  }
  const named = Object.entries(versions).map(([name, version]) => `${name} ${version}`);
  if (named.length) lines.push([named.join(", ")]);
  lines.push(["fingerprint ", make("code", {}, page.fingerprint)]);
  return make("footer", {}, ...lines.map((line) => make("p", {}, ...line)));
}
