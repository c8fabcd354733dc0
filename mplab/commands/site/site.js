// What a page does by itself: predictions that hide what follows, and frozen explorers.
"use strict";

const answers = [...document.querySelectorAll("details.answer")];
for (const answer of answers) answer.open = false;
let closed = [];
addEventListener("beforeprint", () => {
  closed = answers.filter((answer) => !answer.open);
  for (const answer of closed) answer.open = true;
});
addEventListener("afterprint", () => {
  for (const answer of closed) answer.open = false;
});

const FIRST = 0x20; // the character that stands for the first part of a picture

/** The states of an explorer: see `Frozen.packed` in mplab/explorers/freezing.py. */
async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

/** The number of the position of a control. */
function position(control) {
  if (control.tagName === "SELECT") return control.selectedIndex;
  if (control.tagName === "FIELDSET") {
    return [...control.querySelectorAll("input")].findIndex((choice) => choice.checked);
  }
  return control.type === "checkbox" ? Number(control.checked) : Number(control.value);
}

/** Put a control to a position. */
function put(control, number) {
  if (control.tagName === "SELECT") control.selectedIndex = number;
  else if (control.tagName === "FIELDSET") control.querySelectorAll("input")[number].checked = true;
  else if (control.type === "checkbox") control.checked = Boolean(number);
  else control.value = number;
}

/** Let the controls of an explorer move its picture and its sentence. */
async function thaw(explorer) {
  const states = await unpacked(explorer.querySelector(".states").textContent);
  const controls = [...explorer.querySelectorAll("[data-sizes]")];
  const sizes = controls.map((control) => Number(control.dataset.sizes));
  const [picture, sentence] = [".picture", ".sentence"].map((name) => explorer.querySelector(name));
  const number = () => controls.reduce((sum, c, i) => sum * sizes[i] + position(c), 0);

  function show() {
    const row = states.rows[states.at[number()]];
    const text = (word) => [...word].map((c) => states.parts[c.codePointAt(0) - FIRST]).join("");
    const [drawn, said] = row.map(text);
    picture.innerHTML = drawn;
    sentence.textContent = said;
    for (const control of controls.filter((each) => each.type === "range")) {
      const words = JSON.parse(control.dataset.words)[control.value];
      control.setAttribute("aria-valuetext", words);
      control.parentNode.querySelector("output")?.replaceChildren(words);
    }
  }

  for (const control of controls) control.addEventListener("input", show);
  for (const button of explorer.querySelectorAll("button")) {
    button.addEventListener("click", () => {
      let left = states.moves[button.textContent][number()];
      for (let i = controls.length - 1; i >= 0; i--) {
        put(controls[i], left % sizes[i]);
        left = Math.floor(left / sizes[i]);
      }
      show();
    });
  }
  explorer.querySelector(".controls").hidden = false;
  explorer.querySelector(".still").hidden = true;
  show();
}

for (const explorer of document.querySelectorAll(".frozen")) {
  if (window.DecompressionStream) thaw(explorer);
}
