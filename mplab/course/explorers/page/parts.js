// What the explorers of the page share: elements, controls, the life of a state, and a model where
// there is no kernel.

import { holdKeys } from "./focus.js";
import { makeFormat } from "./numbers.js";

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

/** An element with attributes (functions are listeners) and children. */
export const element = (tag, attributes = {}, ...children) =>
  filled(document.createElement(tag), attributes, children);

/** An element of SVG. */
export const shape = (tag, attributes = {}, ...children) =>
  filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

/** A control with its name beside it. */
export const labelled = (words, control) => element("label", {}, `${words} `, control);

/** Controls, or other parts, beside each other as far as there is room. */
export const line = (...parts) => element("div", { class: "mplab-line" }, ...parts);

/** A text field; `change` is given what was typed, and returns false if it is not valid. */
export function textField(change) {
  const plain = { type: "text", autocomplete: "off", spellcheck: "false" };
  const mark = () => change(made.value) === false && made.setAttribute("aria-invalid", true);
  const made = element("input", { ...plain, change: mark });
  return made;
}

/** A slider over integers; `move` is given the new one. */
export const slider = (min, max, move) =>
  element("input", { type: "range", min, max, input: ({ target }) => move(Number(target.value)) });

/** A list to choose a name from. */
export const chooser = (choose) =>
  element("select", { change: ({ target }) => choose(target.value) });

/** Update the names in a list, and which one is chosen. */
export function showChoice(list, names, chosen, words = (name) => name) {
  if (list.length !== names.length) {
    list.replaceChildren(...names.map((value) => element("option", { value }, words(value))));
  }
  list.value = chosen;
}

/** The name of a rounding mode as readers see it. */
export const modeWords = (name) => name.toLowerCase().replaceAll("_", " ");

/** The `permalink` and `linked` of an explorer whose link holds its name and its model's values. */
export function links(name, plain, changed) {
  const start = `#${name}?`;
  const said = (hash) => Object.fromEntries(new URLSearchParams(hash.slice(start.length)));
  return {
    permalink: (state) => `${start}${new URLSearchParams(plain(state))}`,
    linked: (state, hash) => (hash.startsWith(start) ? changed(state, said(hash)) : state),
  };
}

/** Say a note and a text in a live region: only sentences that change are read out. */
function say(region, note, text) {
  const sentences = text.split(/(?<=[.:;]) /);
  while (region.children.length > sentences.length + 1) region.lastChild.remove();
  for (const [i, words] of [note, ...sentences].entries()) {
    const part = region.children[i] ?? region.appendChild(element(i ? "span" : "strong"));
    if (part.textContent.trim() !== words) part.textContent = ` ${words}`;
  }
}

/** A house colour, and for dark pages its hue with its light turned, as light_dark in Python. */
export const onBoth = (colour) => `light-dark(${colour}, oklch(from ${colour} calc(1.22 - l) c h))`;

const REST = 250; // ms of rest before the address changes: browsers refuse hundreds of changes

/**
 * Show an explorer in an element, and keep its state in step with the reader, the model and, in a
 * page without a kernel, the address. There it returns a function that stops this.
 *
 * The explorer is its `question` and functions: `begin(model, formats)` gives the first state,
 * `build(act, now)` the parts over and below the sentence and `show(state, note)`, `sentence(state)`
 * the state in words, `plain(state)` what the model holds of it, `changed(state, record)` the state
 * with some of that changed, `permalink(state)` its link, and `linked(state, hash)` the state that a
 * link names, or the same one if the link is another explorer's. An impossible state throws a
 * RangeError: its message is shown, and the state stays. An explorer that a link names sends the
 * page an event, "addressed".
 */
export function live({ model, el }, explorer) {
  const inBoth = (facts) => makeFormat({ ...facts, colour: onBoth(facts.colour) });
  let state = explorer.begin(model, model.get("formats").map(inBoth));
  let telling = false;
  let resting;
  const { parts, below = [], show } = explorer.build(act, () => state);
  const said = element("div", { role: "status", "aria-live": "polite", "aria-atomic": "false" });
  const link = element("a", {}, "link to this state");

  function attempt(action) {
    let note = "";
    try {
      state = action(state);
    } catch (error) {
      if (!(error instanceof RangeError)) throw error;
      note = error.message;
    }
    show(state, note);
    say(said, note, explorer.sentence(state));
    for (const field of el.querySelectorAll("[aria-invalid]"))
      field.removeAttribute("aria-invalid");
    link.href = explorer.permalink(state);
    return !note;
  }

  function act(action) {
    if (!attempt(action)) return false;
    telling = true; // values are set one by one: do not follow a half-set model
    for (const [name, value] of Object.entries(explorer.plain(state))) model.set(name, value);
    telling = false;
    model.save_changes();
    clearTimeout(resting);
    const address = () => history.replaceState(history.state, "", link.href);
    if (model.inPage) resting = setTimeout(address, REST);
    return true;
  }

  const names = Object.keys(explorer.plain(state));
  const changed = (some) =>
    attempt((s) => explorer.changed(s, Object.fromEntries(some.map((n) => [n, model.get(n)]))));
  function follow() {
    if (telling) return;
    const held = explorer.plain(state);
    const news = names.filter((name) => model.get(name) !== held[name]);
    if (news.length) changed(news);
  }

  function followLink() {
    const before = state;
    const followed = attempt((s) => explorer.linked(s, location.hash));
    if (state === before && followed) return;
    el.dispatchEvent(new CustomEvent("addressed", { bubbles: true }));
  }
  el.classList.add("mplab-page");
  holdKeys(el);
  const shown = [element("b", {}, explorer.question), ...parts, said, ...below];
  el.replaceChildren(...shown, ...(model.inPage ? [link] : []));
  changed(names);
  for (const name of names) model.on(`change:${name}`, follow);
  if (!model.inPage) return undefined;
  if (location.hash) followLink();
  window.addEventListener("hashchange", followLink);
  return () => {
    clearTimeout(resting);
    window.removeEventListener("hashchange", followLink);
  };
}

/** A model like anywidget's, for a page without a kernel. */
export function plainModel(state) {
  return {
    inPage: true,
    get: (name) => state[name],
    set: (name, value) => Object.assign(state, { [name]: value }),
    on: () => {},
    save_changes: () => {},
  };
}
