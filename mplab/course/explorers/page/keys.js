// An unseen part of each explorer that is made of ipywidgets: it holds the keys, and for screen
// readers each slider has its name, and the words beside it as its value.

import { holdKeys } from "./focus.js";

function nameSliders(explorer) {
  for (const handle of explorer.querySelectorAll(".noUi-handle")) {
    const box = handle.closest(".widget-inline-hbox");
    const said = {
      "aria-label": box?.querySelector(".widget-label")?.textContent,
      "aria-valuetext": box?.querySelector(".widget-readout")?.textContent,
    };
    for (const [name, words] of Object.entries(said)) {
      if (words && handle.getAttribute(name) !== words) handle.setAttribute(name, words);
    }
  }
}

function render({ el }) {
  let observer;
  const watch = { subtree: true, childList: true, characterData: true };
  const attributes = { attributes: true, attributeFilter: ["aria-valuetext"] };
  let frames = 600; // to wait until it is in the page
  const begin = () => {
    const explorer = el.closest(".mplab-explorer");
    if (!explorer) {
      frames -= 1;
      if (frames > 0) requestAnimationFrame(begin);
      return;
    }
    holdKeys(explorer);
    nameSliders(explorer);
    observer = new MutationObserver(() => nameSliders(explorer));
    observer.observe(explorer, { ...watch, ...attributes });
  };
  begin();
  return () => observer?.disconnect();
}

export default { render };
