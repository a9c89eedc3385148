// Names of buffers. The rules are those of hbmwatch/_records/text.py.

export const SMALL_BUFFERS = "buffers smaller than 16 KiB, combined";

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
