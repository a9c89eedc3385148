// The address holds the view, so that a link shows it.

/** The fields of an address, as [name, value]; none if it holds something else. */
export function readAddress(hash) {
  const text = hash.replace(/^#/, "");
  return text.includes("=") ? [...new URLSearchParams(text)] : [];
}

/** The address of some fields. */
export const addressOf = (fields) => (fields.length ? `#${new URLSearchParams(fields)}` : "");

/** Put the view into the address; a frame of a notebook has none that it may change. */
export function writeAddress(view) {
  const address = addressOf(view.state());
  if (address === addressOf(readAddress(location.hash))) return;
  try {
    history.replaceState(null, "", address || location.pathname + location.search);
  } catch {
    // The view works all the same.
  }
}

/** Show the view of the address, now and when the address changes. */
export function listenToAddress(view) {
  addEventListener("hashchange", () => {
    const fields = readAddress(location.hash);
    if (!fields.length && location.hash) return;
    if (addressOf(fields) === addressOf(view.state())) return;
    view.restore(fields);
    view.draw();
  });
}
