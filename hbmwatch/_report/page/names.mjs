// Names of buffers. The rules are those of hbmwatch/_records/text.py.

export const SMALL_BUFFERS = "buffers smaller than 16 KiB, combined";
export const UNLISTED_BUFFERS = "buffers that are not listed, combined";

/** An op_name without the outermost jit, which is the same for every buffer of a program. */
export const withoutOuterJit = (name) => name.replace(/^jit\([^()/]*\)\/(?:jit\(main\)\/)?/, "");

/** A name with "*" in place of each number, so that all layers have the same name. */
export const unnumbered = (name) => name.replace(/\d+/g, "*");

/** A shape without its layout: "f32[8,8]" of "f32[8,8]{1,0}". */
export const withoutLayout = (shape) => shape.replace(/\{[^{}]*\}/g, "");

/** The name of a buffer, or of several equal ones, for a row. */
export function bufferName(opName, instruction, several) {
  if (!instruction) return SMALL_BUFFERS;
  const name = withoutOuterJit(opName) || instruction;
  return several ? unnumbered(name) : name;
}

/** The keys of a pytree path: "state", ".opt", "['mu']", "[0]" of "state.opt['mu'][0]". */
export function pathKeys(path) {
  const split = path.replaceAll("].", "]\0.").replaceAll("[", "\0[").replaceAll(".", "\0.");
  return split.split("\0").filter(Boolean);
}

// Parts of an op_name that name no block: what JAX's transformations and loops add.
const TRANSFORMS = /\b(?:jvp|transpose|vmap|pmap|remat|checkpoint|shard_map|custom_\w+)\(/g;
const UNNAMED = new Set((
  "while body cond scan closed_call checkpoint remat rematted_computation pjit core_call "
  + "custom_jvp_call custom_vjp_call shard_map"
).split(" "));

/** The named blocks that an op_name is in, outermost first: "block_3", "attention". */
export function namedBlocks(opName) {
  const bare = withoutOuterJit(opName).replace(TRANSFORMS, "");
  const parts = bare.split("/").slice(0, -1).map((part) =>
    part.replace(/^jit\((\w*)\)*$/, "$1").replace(/[()]/g, ""));
  return parts.filter((part) => part && !part.startsWith("_") && !UNNAMED.has(part));
}

/** A frame of a stack, short: "loss train.py:12" of "/home/me/train.py:12, in loss". */
export function shortFrame(frame) {
  const [line, name] = frame.split(", in ");
  const file = line.slice(line.lastIndexOf("/") + 1);
  return name ? `${name} ${file}` : file;
}
