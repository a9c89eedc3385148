// In the notebook: a frame that tells its height gets it, and replaces the text below it.
if (!window.hbmwatchListens) {
  window.hbmwatchListens = true;
  window.addEventListener("message", ({ data, source }) => {
    const height = data && data.hbmwatchHeight;
    if (!Number.isFinite(height)) return;
    for (const frame of document.querySelectorAll("iframe.hbmwatch")) {
      if (frame.contentWindow !== source) continue;
      frame.style.height = `${Math.min(Math.max(height, 100), 6000)}px`;
      frame.nextElementSibling.hidden = true;
    }
    // marimo puts the output into a frame of its own, which its own function does not fit: that
    // needs a document in standards mode.
    const own = window.frameElement;
    if (own && window.parent.__resizeIframe) {
      own.style.height = `${Math.ceil(document.body.getBoundingClientRect().bottom) + 16}px`;
    }
  });
}
