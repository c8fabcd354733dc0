// What an explorer in a notebook does with keys and with the focus.

/**
 * Keep plain keys in an explorer: in JupyterLab an arrow moves to another cell, and d d deletes one.
 * Keys with Ctrl, Meta or Alt pass, such as Ctrl+S, and Escape gives the focus back to the cell. A
 * click beside the controls gives the focus to the explorer, not to the cell.
 */
export function holdKeys(explorer) {
  explorer.tabIndex = -1;
  explorer.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    event.stopPropagation();
    if (event.key === "Escape") explorer.closest(".jp-Cell")?.focus();
  });
}
