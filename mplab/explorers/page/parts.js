// What the explorers of the page share: elements, words, and a model where there is no kernel.

/** An element with attributes (functions are listeners) and children. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

/** A control with its name beside it. */
export const labelled = (words, control) => element("label", {}, `${words} `, control);

/** An integer in raised digits. */
export const raised = (k) => String(k).replace(/./g, (c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]));

/** A model as anywidget's, for a page without a kernel. Such a page may have a permalink. */
export function plainModel(state) {
  return {
    permalink: true,
    get: (name) => state[name],
    set: (name, value) => {
      state[name] = value;
    },
    on: () => {},
    save_changes: () => {},
  };
}
