// In a notebook's frame: tells the notebook how high the page is, which then fits the frame to it.

if (window.parent !== window) {
  document.documentElement.classList.add("framed");
  const tellHeight = () => {
    const hbmwatchHeight = Math.ceil(document.body.getBoundingClientRect().height);
    window.parent.postMessage({ hbmwatchHeight }, "*");
  };
  window.addEventListener("load", tellHeight); // an observer waits until the frame is in sight
  new ResizeObserver(tellHeight).observe(document.body);
}
