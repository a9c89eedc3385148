// The flame graph: stacks of functions as rows of frames, callers above, as wide as their bytes.

import { formatSize } from "./format.mjs";
import { pathTo } from "./groups.mjs";
import { shortFrame } from "./names.mjs";

const ROW = 22;
const LEAST = 2; // pixels: narrower frames are left out

/** The bytes below each node of the buffers that are live and in the zoom, by the node's id. */
function nodeBytes({ b, tree, live, groupOf }) {
  const bytes = new Float64Array(tree.nodes.length);
  for (const i of live) if (groupOf[i] >= 0) bytes[tree.leafOf[i]] += b.size_bytes[i];
  // A node comes after its parent.
  for (let id = tree.nodes.length - 1; id > 0; id -= 1) {
    bytes[tree.nodes[id].parent.id] += bytes[id];
  }
  return bytes;
}

/** The frames below the zoom with their places, callers first. */
export function layFrames(view, { width }) {
  const { zoomed, groupAt } = view;
  const bytes = nodeBytes(view);
  const total = bytes[zoomed.id];
  if (!total) return [];
  const frames = [];
  const lay = (node, x, depth, above) => {
    const w = (bytes[node.id] / total) * width;
    if (w < LEAST) return;
    const color = groupAt.get(node.id)?.color ?? above;
    const size = formatSize(bytes[node.id]);
    const name = node.id ? shortFrame(node.name) : "all";
    const share = `${((100 * bytes[node.id]) / total).toFixed(1)}%`;
    const label = `${node.name || "all"}: ${size}, ${share}, level ${pathTo(node).length}`;
    const box = { x, y: depth * ROW, w, h: ROW };
    const lines = [`${name} ${size}`];
    frames.push({ group: { id: node.id, color }, node, box, lines, label });
    let left = x;
    for (const child of [...node.children.values()].sort((m, n) => bytes[n.id] - bytes[m.id])) {
      lay(child, left, depth + 1, color);
      left += (bytes[child.id] / total) * width;
    }
  };
  lay(zoomed, 0, 0, "r-other");
  return frames;
}

/** The height of the rows of all frames. */
export const flameHeight = (frames) =>
  frames.reduce((high, { box }) => Math.max(high, box.y + box.h), 0);
