// Groups of buffers: by role, line, function, pytree path, shape or layer, as a tree to zoom into.

import { namedBlocks, pathKeys, unnumbered, withoutLayout } from "./names.mjs";
import { colorAt, colorOf } from "./roles.mjs";

const COLORED = 11; // so many groups have a color and a band of their own

const isArgument = (b, i) => b.text("kind", i) === "parameter";

function layerPath(b, i) {
  const name = b.text("op_name", i);
  const [blocks, glue] = isArgument(b, i)
    ? [pathKeys(name).slice(0, -1), ""] : [namedBlocks(name), "/"];
  if (!blocks.length) return ["not in a named block"];
  const path = blocks.map(unnumbered);
  const [all, own] = [path.join(glue), blocks.join(glue)];
  return glue ? [...path, ...(all === own ? [] : [own])] : [all, ...(all === own ? [] : [own])];
}

// Name, label, what a buffer's place depends on, and its place: names from the root to a leaf.
const GROUPINGS = new Map(Object.entries({
  role: ["role", (b, i) => b.roleNumber(i), (b, i) => [b.roleOf(i).name]],
  line: ["source line", (b, i) => b.source[i],
    (b, i) => [b.text("source", i) || "no source line"]],
  function: ["function", (b, i) => `${b.stack[i]}|${isArgument(b, i)}`, (b, i) => {
    const frames = b.stackOf(i).reverse();
    if (frames.length) return frames;
    return [isArgument(b, i) ? "arguments of the call" : "no stack"];
  }],
  path: ["pytree path", (b, i) => `${isArgument(b, i) ? b.op_name[i] : `role ${b.roleNumber(i)}`}`,
    (b, i) => (isArgument(b, i) ? pathKeys(b.text("op_name", i))
      : ["not an argument", b.roleOf(i).name])],
  shape: ["shape", (b, i) => b.shape[i],
    (b, i) => [withoutLayout(b.text("shape", i)) || "no shape"]],
  layer: ["layer", (b, i) => `${b.op_name[i]}|${isArgument(b, i)}`, layerPath],
}));

/** The groupings to choose from, as [name, label]. */
export const groupings = () => [...GROUPINGS].map(([name, [label]]) => [name, label]);

export const isGrouping = (name) => GROUPINGS.has(name);

/** All buffers as a tree by a grouping: nodes from the root on, and the leaf of each buffer. */
export function makeTree(b, grouping) {
  const [, keyOf, pathOf] = GROUPINGS.get(grouping);
  const nodes = [{ id: 0, name: "", parent: null, children: new Map(), own: 0 }];
  const leaves = new Map();
  const leafFor = (path) => path.reduce((node, name) => {
    if (!node.children.has(name)) {
      const child = { id: nodes.length, name, parent: node, children: new Map(), own: 0 };
      nodes.push(child);
      node.children.set(name, child);
    }
    return node.children.get(name);
  }, nodes[0]);
  const leafOf = new Int32Array(b.count + 1);
  for (let i = 0; i <= b.count; i += 1) {
    const key = b.isSum(i) ? `sum ${b.roleNumber(i)}` : keyOf(b, i);
    if (!leaves.has(key)) {
      leaves.set(key, leafFor(b.isSum(i) ? [b.roleOf(i).name] : pathOf(b, i)));
    }
    leafOf[i] = leaves.get(key).id;
    if (i !== b.rest) nodes[leafOf[i]].own += 1;
  }
  return { grouping, nodes, leafOf };
}

/** The names from the root to a node. */
export function pathTo(node) {
  const path = [];
  for (let at = node; at.parent; at = at.parent) path.unshift(at.name);
  return path;
}

/** The node at a path, or the deepest one on it that exists. */
export function nodeAt(tree, path) {
  let node = tree.nodes[0];
  for (const name of path) node = node.children.get(name) ?? node;
  return node;
}

/** The first node below a node at which groups part: a chain of only children is one group. */
function parting(node) {
  let at = node;
  while (at.children.size === 1 && !at.own) [at] = at.children.values();
  return at.children.size ? at : node;
}

/** For each node, the group that it is in below `zoom`; -1 outside of `zoom`. */
function groupOfNodes(tree, zoom) {
  const root = parting(zoom);
  const groups = new Int32Array(tree.nodes.length).fill(-1);
  // A node comes after its parent.
  for (const { id, parent } of tree.nodes) {
    if (id === root.id) groups[id] = id;
    else if (parent && parent.id === root.id) groups[id] = id;
    else if (parent && groups[parent.id] >= 0) groups[id] = groups[parent.id];
  }
  return groups;
}

/**
 * The groups below a node: `groupOf` has the number of each buffer's group, -1 outside of the node;
 * the groups come largest first (roles in their own order), the first ones with a color each.
 */
export function makeGroups(b, tree, zoom) {
  const groups = groupOfNodes(tree, zoom);
  const groupOf = Int32Array.from(tree.leafOf, (leaf) => groups[leaf]);
  const found = new Map();
  for (let i = 0; i < b.count; i += 1) {
    const id = groupOf[i];
    if (id < 0) continue;
    if (!found.has(id)) found.set(id, { id, node: tree.nodes[id], peak: 0, ever: 0, sums: true });
    const group = found.get(id);
    group.sums = group.sums && b.isSum(i);
    group.ever += b.size_bytes[i];
    if (i < b.peak_count) group.peak += b.size_bytes[i];
  }
  const ordered = [...found.values()]
    .sort((x, y) => x.sums - y.sums || y.peak - x.peak || y.ever - x.ever);
  const byRole = tree.grouping === "role" && zoom.id === 0;
  if (byRole) {
    const order = new Map(b.roles.map(({ name }, n) => [name, n]));
    ordered.sort((x, y) => order.get(x.node.name) - order.get(y.node.name));
  }
  ordered.forEach((group, n) => {
    group.name = group.node.name || "all";
    group.rank = byRole ? n : Math.min(n, COLORED);
    group.color = byRole || group.sums ? colorOf(group.name) : colorAt(group.rank);
    if (tree.grouping === "role" && zoom.id) group.color = colorOf(group.name);
  });
  return { groupOf, groups: ordered, groupAt: new Map(ordered.map((group) => [group.id, group])) };
}
