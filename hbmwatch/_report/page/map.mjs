// The map of the live buffers: a treemap, or a flame graph of functions; by pointer and keyboard.

import { $, draw, make } from "./dom.mjs";
import { flameHeight, layFrames } from "./flame.mjs";
import { drawTile, layTiles } from "./treemap.mjs";

const FLAME_HEIGHT = 330; // pixels, at least

/** The card of the map. */
export function map() {
  const label = "The buffers as areas, by group. Arrow keys move; Enter zooms into a group or "
    + "selects a buffer; Escape goes back";
  const svg = draw("svg", { role: "presentation" });
  const box = { class: "card map", id: "map", role: "listbox", tabindex: 0, "aria-label": label };
  return make("div", box, svg);
}

export function drawMap(view) {
  const [box, svg] = [$("map"), $("map").querySelector("svg")];
  const { width, height } = box.getBoundingClientRect();
  const isFlame = view.by === "function";
  view.tiles = isFlame ? layFrames(view, { width }) : layTiles(view, { width, height });
  const high = isFlame ? Math.max(FLAME_HEIGHT, flameHeight(view.tiles)) : height;
  svg.setAttribute("viewBox", `0 0 ${width} ${high}`);
  svg.style.height = isFlame ? `${high}px` : "";
  box.classList.toggle("flame", isFlame);
  svg.replaceChildren(...view.tiles.map(drawTile));
  view.tile = -1;
  box.removeAttribute("aria-activedescendant");
  markMap(view);
}

/** The ids of the nodes that the buffers in focus are in: their leaves and all above these. */
function nodesOf({ tree }, members) {
  const nodes = new Set();
  for (const i of members) {
    let node = tree.nodes[tree.leafOf[i]];
    for (; node && !nodes.has(node.id); node = node.parent) nodes.add(node.id);
  }
  return nodes;
}

/** Mark the tiles of the buffers in focus, and fade those of hidden groups. */
export function markMap(view) {
  const members = view.focus()?.members ?? [];
  const marked = new Set(members);
  const nodes = view.by === "function" ? nodesOf(view, members) : null;
  const elements = $("map").querySelectorAll("g[data-n]");
  view.tiles.forEach(({ i, group, node }, n) => {
    const on = node ? nodes.has(node.id) : i !== undefined && i !== null && marked.has(i);
    elements[n].firstChild.classList.toggle("on", on);
    elements[n].classList.toggle("off", view.hidden.has(group.id));
  });
}

/** Move the keyboard's place to a tile. */
function moveTo(view, n) {
  const [box, elements] = [$("map"), $("map").querySelectorAll("g[data-n]")];
  for (const element of elements) {
    const isPlace = Number(element.dataset.n) === n;
    element.classList.toggle("place", isPlace);
    element.setAttribute("aria-selected", String(isPlace));
  }
  view.tile = n;
  box.setAttribute("aria-activedescendant", `tile-${n}`);
  elements[n].scrollIntoView({ block: "nearest" });
  view.hover(view.rowWith(view.tiles[n].i ?? undefined));
}

/** Zoom into a tile's group, or select its buffer. */
function enter(view, tile) {
  const row = view.rowWith(tile.i ?? undefined);
  if (tile.node) view.zoomTo(tile.node);
  else if (row) view.activate(row);
  else if (view.groupAt.has(tile.group.id)) view.zoomTo(view.groupAt.get(tile.group.id).node);
}

function moveInMap(view, event) {
  const { tiles, tile } = view;
  if (!tiles.length || event.ctrlKey || event.metaKey || event.altKey) return;
  const last = tiles.length - 1;
  const to = {
    ArrowRight: tile + 1, ArrowDown: tile + 1, ArrowLeft: tile - 1, ArrowUp: tile - 1,
    Home: 0, End: last,
  }[event.key];
  const enters = (event.key === "Enter" || event.key === " ") && tile >= 0;
  if (to === undefined && !enters) return;
  event.preventDefault();
  view.usesKeys = true;
  if (enters) enter(view, tiles[tile]);
  else moveTo(view, Math.max(0, Math.min(last, to)));
}

/** Follow the pointer over the tiles; a click zooms into a group or selects a buffer's row. */
export function listenToMap(view) {
  const tileAt = (event) => {
    const element = event.target.closest("g[data-n]");
    return element ? view.tiles[element.dataset.n] : null;
  };
  const box = $("map");
  box.addEventListener("mousemove", (event) => {
    view.follow(event, view.rowWith(tileAt(event)?.i ?? undefined));
  });
  box.addEventListener("mouseleave", () => view.hover(null));
  box.addEventListener("click", (event) => {
    const tile = tileAt(event);
    if (tile) enter(view, tile);
  });
  box.addEventListener("keydown", (event) => moveInMap(view, event));
}
