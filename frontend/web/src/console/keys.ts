/** Keyboard shortcuts of the console, and the row editor's extra messages. */

const IN_TEXT = "input, textarea, select";

document.addEventListener("keydown", (event) => {
  const target = event.target as HTMLElement;
  const form = document.querySelector<HTMLFormElement>("[data-row-editor]");
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && form) {
    event.preventDefault();
    press("s");
    return;
  }
  if (event.key === "Escape") {
    target.blur();
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || target.closest(IN_TEXT)) return;
  if (event.key === "e" && form) {
    event.preventDefault();
    const texts = form.querySelectorAll<HTMLTextAreaElement>("textarea");
    texts[texts.length - 1]?.focus();
    return;
  }
  if (press(event.key.toLowerCase())) event.preventDefault();
});

/** Press the button or link of a key, once. */
function press(key: string): boolean {
  if (!/^[a-z]$/.test(key)) return false;
  const found = document.querySelector<HTMLElement>(`[data-key="${key}"]`);
  if (!found || found.ariaBusy === "true") return false;
  found.ariaBusy = "true";
  found.click();
  return true;
}

const add = document.querySelector<HTMLButtonElement>("[data-add-turn]");
if (add) {
  add.hidden = false;
  add.addEventListener("click", () => {
    const turns = document.querySelectorAll<HTMLElement>("[data-turn]");
    const last = turns[turns.length - 1];
    if (!last) return;
    const next = last.cloneNode(true) as HTMLElement;
    const role = next.querySelector("select");
    const text = next.querySelector("textarea");
    if (!role || !text) return;
    role.value = last.querySelector("select")?.value === "user" ? "assistant" : "user";
    role.ariaLabel = `Role of message ${turns.length + 1}`;
    text.ariaLabel = `Message ${turns.length + 1}`;
    text.value = "";
    last.after(next);
    text.focus();
  });
}
const help = document.querySelector<HTMLElement>("[data-keys-help]");
if (help) help.hidden = false;
