// What the reader looks at: a moment, a grouping, a group, words, and the rows that follow.

import {
  equalNumbers, liveAt, makeRows, matcher, readBuffers, restAt, sortRows,
} from "./buffers.mjs";
import { isGrouping, makeGroups, makeTree, nodeAt, pathTo } from "./groups.mjs";

const START = {
  point: null, by: "role", zoom: [], words: "", sortKey: "size", ascending: false, folded: true,
};

export class View {
  constructor({ buffers, heap, peak, limit }) {
    this.b = readBuffers(buffers, heap, peak);
    Object.assign(this, { heap, peak, limit, ...START, hidden: new Set() });
    // The selected row, the one under the pointer, the finding in focus, whether the selected row
    // or the finding stays marked, and whether the reader uses keys.
    Object.assign(this, { active: null, hovered: null, finding: null, kept: null });
    Object.assign(this, { pinned: false, usesKeys: false });
    this.at(null);
  }

  /** Whether the moment is the peak. */
  get isPeak() {
    return this.point === this.peak;
  }

  /** Choose a program point; null is the peak. */
  at(point) {
    const last = Math.max(0, this.heap.length - 1);
    this.point = point === null ? this.peak : Math.max(0, Math.min(last, point));
    const listed = liveAt(this.b, this.point);
    const rest = restAt(this.b, this.point, listed);
    this.live = rest > 0 ? Int32Array.from([...listed, this.b.rest]) : listed;
    this.liveBytes = this.live.reduce((sum, i) => sum + this.b.size_bytes[i], 0);
    this.group();
  }

  /** Group the buffers below the group that is zoomed into. */
  group() {
    if (this.tree?.grouping !== this.by) this.tree = makeTree(this.b, this.by);
    this.zoomed = nodeAt(this.tree, this.zoom);
    this.zoom = pathTo(this.zoomed);
    const key = `${this.by} ${this.zoomed.id}`;
    if (this.groupsKey !== key) {
      Object.assign(this, makeGroups(this.b, this.tree, this.zoomed));
      Object.assign(this, { groupsKey: key, series: null });
      this.hidden.clear();
    }
    this.groupBytes = bytesOfGroups(this);
    this.select();
  }

  /** Choose and sort the rows to show. */
  select() {
    const { b, groupOf, hidden } = this;
    this.equal ??= equalNumbers(b);
    const matches = matcher(b, this.words);
    const shows = (i) => groupOf[i] >= 0 && !hidden.has(groupOf[i]) && matches(i);
    const before = this.active?.members[0];
    this.rows = makeRows(b, this.live.filter(shows), this.folded ? this.equal : null);
    this.rowOf = new Int32Array(b.count + 1).fill(-1);
    for (const row of this.rows) for (const i of row.members) this.rowOf[i] = row.id;
    this.shown = sortRows([...this.rows], this.sortKey, this.ascending);
    this.active = this.rowWith(before) ?? this.shown[0] ?? null;
    this.pinned = this.pinned && before !== undefined && this.rowOf[before] >= 0;
    this.hovered = null;
  }

  /** The row that a buffer is in; null if it is in none that is shown. */
  rowWith(i) {
    return (i === undefined ? null : this.rows[this.rowOf[i]]) ?? null;
  }

  /** What chart and treemap mark: the buffers of a row or of a finding; null for nothing. */
  focus() {
    return this.hovered ?? this.finding ?? (this.pinned ? this.active : null) ?? this.kept;
  }

  /** The group that a buffer is in. */
  groupWith(i) {
    return this.groupAt.get(this.groupOf[i]);
  }

  /** The state as it is in the address: only what differs from the start. */
  state() {
    const { point, by, zoom, words, sortKey, ascending, folded } = this;
    const hidden = [...this.hidden].map((id) => this.groupAt.get(id)?.name);
    const fields = [
      ["at", this.isPeak ? "" : String(point)], ["by", by === START.by ? "" : by],
      ["sort", sortKey === START.sortKey && !ascending ? "" : `${ascending ? "+" : "-"}${sortKey}`],
      ["find", words.trim()], ["each", folded ? "" : "1"],
    ].filter(([, value]) => value);
    const named = (key, names) => names.map((name) => [key, name]);
    return [...fields, ...named("in", zoom), ...named("hide", hidden)];
  }

  /** Take a state from an address. */
  restore(fields) {
    const all = (name) => fields.filter(([key]) => key === name).map(([, value]) => value);
    const [at, by, sort] = ["at", "by", "sort"].map((name) => all(name)[0] ?? "");
    const [, sign, key] = /^([+-])(size|padding|lifetime|order)$/.exec(sort) ?? ["", "-", "size"];
    Object.assign(this, { by: isGrouping(by) ? by : START.by, zoom: all("in") });
    Object.assign(this, { sortKey: key, ascending: sign === "+", words: all("find")[0] ?? "" });
    this.folded = all("each")[0] !== "1";
    this.at(/^\d{1,9}$/.test(at) ? Number(at) : null);
    const hide = new Set(all("hide"));
    for (const { id, name } of this.groups) if (hide.has(name)) this.hidden.add(id);
    if (hide.size) this.select();
  }
}

/** The live bytes of each group, by its number. */
export function bytesOfGroups({ b, live, groupOf }) {
  const found = new Map();
  for (const i of live) {
    const id = groupOf[i];
    if (id >= 0) found.set(id, (found.get(id) ?? 0) + b.size_bytes[i]);
  }
  return found;
}
