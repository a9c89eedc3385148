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
const UNNAMED = new RegExp(
  "^(?:while|body|body_pred|cond|branch_\\d+_fun|scan|closed_call|core_call|pjit|eval_jaxpr|"
  + "checkpoint|remat\\d*|rematted_computation|shard_map|shmap_body|custom_\\w+_call\\w*)$",
);

/** The named blocks that an op_name is in, outermost first: "block_3", "attention". */
export function namedBlocks(opName) {
  const parts = withoutOuterJit(opName).replace(TRANSFORMS, "").split("/").slice(0, -1);
  // Most jitted functions are of jax.numpy and jax.nn: jit(norm), jit(silu).
  const names = parts.filter((part) => !part.includes("jit(")).map((part) =>
    part.replace(/[()]/g, ""));
  return names.filter((name) => name && !name.startsWith("_") && !UNNAMED.test(name));
}

/** A frame of a stack, short: "loss train.py:12" of "/home/me/train.py:12, in loss". */
export function shortFrame(frame) {
  const [line, name] = frame.split(", in ");
  const file = line.slice(line.lastIndexOf("/") + 1);
  return name ? `${name} ${file}` : file;
}
