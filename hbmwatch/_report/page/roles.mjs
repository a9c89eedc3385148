// The colors of roles and of other groups, as classes of the style sheet.

// Roles that never occur in the same program share a color.
const COLORS = new Map(Object.entries({
  "parameters": "params",
  "optimizer state": "optimizer",
  "parameters or optimizer state": "optimizer",
  "updated arguments": "optimizer",
  "cache": "params",
  "batch": "inputs",
  "other arguments": "arguments",
  "arguments": "arguments",
  "outputs": "outputs",
  "residuals saved for backward": "residuals",
  "recomputed by jax.checkpoint": "recomputed",
  "gradients": "gradients",
  "backward temporaries": "backward",
  "forward temporaries": "forward",
  "collectives": "collectives",
  "other temporaries": "temporaries",
  "constants": "constants",
}));

/** The class that colors a role. */
export const colorOf = (role) => `r-${COLORS.get(role) ?? "other"}`;

// The colors of other groups by rank: each differs much from those before it.
const SEQUENCE = (
  "optimizer backward temporaries arguments recomputed params collectives forward outputs "
  + "residuals gradients"
).split(" ");

/** The class that colors the group of a rank; from the last one on all are gray. */
export const colorAt = (rank) => `r-${SEQUENCE[rank] ?? "other"}`;
