// What an explorer in a notebook does with keys and with the focus.

const modified = (event) => event.ctrlKey || event.metaKey || event.altKey;

const LEFT_ALONE = "data-lm-suppress-shortcuts";

/**
 * Notebook 7 hears a key before the explorer does. It leaves a key alone where the attribute stands
 * on what has the focus; on the explorer around it is not enough.
 */
function leaveToExplorer(event) {
  if (!event.target.closest?.(".mplab-explorer, .mplab-page")) return;
  event.target.toggleAttribute(LEFT_ALONE, !modified(event));
}

/**
 * Keep plain keys in an explorer: in a notebook an arrow moves to another cell, and d d deletes one.
 * Keys with Ctrl, Meta or Alt pass, such as Ctrl+S, and Escape gives the focus back to the cell. A
 * click beside the controls gives the focus to the explorer, not to the cell.
 */
export function holdKeys(explorer) {
  window.addEventListener("keydown", leaveToExplorer, { capture: true });
  explorer.tabIndex = -1;
  explorer.addEventListener("keydown", (event) => {
    if (modified(event)) return;
    event.stopPropagation();
    event.target.removeAttribute(LEFT_ALONE); // around another part it would hold back its Ctrl+S
    if (event.key === "Escape") explorer.closest(".jp-Cell")?.focus();
  });
}
