// Numbers as text. The rules are those of hbmwatch/_records/sizes.py.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/** A number with some decimals, ties to even: Python rounds so, and toFixed rounds ties up. */
function rounded(size, decimals) {
  const halves = size * 2 ** (decimals + 1);
  const lower = Math.floor(size * 10 ** decimals);
  const isTie = Number.isInteger(halves) && halves % 2 === 1;
  const nearest = isTie && lower % 2 === 0 ? lower / 10 ** decimals : size;
  // From 10 ** 21 on toFixed gives an exponent.
  return nearest < 1e21 ? nearest.toFixed(decimals) : `${BigInt(nearest)}.${"0".repeat(decimals)}`;
}

/** The digits of a size in one unit: two decimals from GiB on, else three digits. */
function digitsOf(size, unit) {
  if (unit >= 3) return rounded(size, 2);
  return size >= 100 ? rounded(size, 0) : rounded(size, 1).replace(/\.0$/, "");
}

/** A size for a person: "0 B", "1.5 MiB", "256 MiB", "15.75 GiB" (base 1024). */
export function formatSize(bytes) {
  let size = Math.abs(bytes);
  let unit = 0;
  // The rounded figure decides on the unit: one byte less than 1 GiB is "1.00 GiB".
  while (unit < UNITS.length - 1 && Number(digitsOf(size, unit)) >= 1024) {
    size /= 1024;
    unit += 1;
  }
  return `${bytes < 0 ? "-" : ""}${digitsOf(size, unit)} ${UNITS[unit]}`;
}

/** A number with its thousands separated: "1,048,576". */
export const formatCount = (n) => n.toLocaleString("en-US");

/** A number of things: "1 row", "1,048,576 rows". */
export const plural = (n, noun) => `${formatCount(n)} ${noun}${n === 1 ? "" : "s"}`;

/** A share as "33%". */
export const formatPercent = (part, whole) => `${rounded(whole ? (100 * part) / whole : 0, 0)}%`;
