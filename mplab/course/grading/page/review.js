// Keys: n next, p previous (not while a comment is written), Ctrl+Enter save.

const form = document.querySelector("form");
const fields = [...form.querySelectorAll("[name=points]")];
let changed = false;
function add() {
  const output = form.querySelector("output");
  const sum = fields.reduce((sum, field) => sum + field.valueAsNumber, 0);
  if (output) output.textContent = Number.isNaN(sum) ? "–" : Number(sum.toFixed(6));
}
add();
form.addEventListener("input", () => {
  changed = true;
  add();
});
form.addEventListener("submit", () => {
  changed = false;
});
form.addEventListener("click", ({ target }) => {
  if (!target.closest(".bank button")) return;
  const comment = form.querySelector("textarea");
  comment.value = `${comment.value}\n${target.textContent}`.trim();
  changed = true;
});
addEventListener("beforeunload", (event) => {
  if (changed) event.preventDefault();
});
addEventListener("keydown", (event) => {
  if (event.ctrlKey && event.key === "Enter") form.requestSubmit();
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "TEXTAREA") return;
  if (event.key !== "n" && event.key !== "p") return;
  event.preventDefault();
  document.querySelector(`nav a[data-key=${event.key}]`)?.click();
});
