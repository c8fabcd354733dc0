// Keys: n next, p previous (not while a comment is written), Ctrl+Enter save.

const form = document.querySelector("form");
let changed = false;
form.addEventListener("input", () => {
  changed = true;
});
form.addEventListener("submit", () => {
  changed = false;
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
