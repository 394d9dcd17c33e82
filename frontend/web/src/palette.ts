/** The palette: find anything by name from any page, with the keyboard alone. */
import { byId } from "./shared/dom";

interface Thing {
  name: string;
  detail: string;
  href: string;
}

interface Group {
  title: string;
  things: readonly Thing[];
}

const WAIT_MS = 150;
const dialog = byId<HTMLDialogElement>("palette")!;
const input = byId<HTMLInputElement>("palette-words")!;
const list = byId("palette-found")!;
const status = byId("palette-words-found")!;
let timer = 0;
let round = 0;
let asked: AbortController | null = null;

input.addEventListener("input", () => {
  window.clearTimeout(timer);
  timer = window.setTimeout(() => void look(), WAIT_MS);
});
input.addEventListener("keydown", (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step !== undefined) {
    event.preventDefault();
    move(step);
  } else if (event.key === "Enter") {
    event.preventDefault();
    chosen()?.click();
  }
});
// A click beside the dialog lands on the dialog itself.
dialog.addEventListener("click", (event) => {
  if (event.target === dialog) dialog.close();
});

/** Show the palette, with what was typed before marked to be typed over. */
export function open(): void {
  if (!dialog.open) dialog.showModal();
  input.select();
  void look();
}

async function look(): Promise<void> {
  const mine = ++round;
  asked?.abort();
  asked = new AbortController();
  try {
    const reply = await fetch(`/find?q=${encodeURIComponent(input.value)}`, {
      headers: { Accept: "application/json" },
      signal: asked.signal,
    });
    if (mine !== round) return;
    if (!reply.ok || reply.redirected) throw new Error(`the answer was ${reply.status}`);
    show(((await reply.json()) as { groups: readonly Group[] }).groups);
  } catch (error) {
    if (mine !== round || (error instanceof DOMException && error.name === "AbortError")) return;
    list.replaceChildren();
    say("That could not be looked up. Try again.");
  }
}

function show(groups: readonly Group[]): void {
  let number = 0;
  list.replaceChildren(
    ...groups.map((group, at) => {
      const box = Object.assign(document.createElement("div"), { role: "group" });
      const title = Object.assign(document.createElement("div"), {
        className: "palette-title",
        id: `palette-group-${at}`,
        textContent: group.title,
      });
      box.setAttribute("aria-labelledby", title.id);
      box.append(title, ...group.things.map((thing) => option(thing, number++)));
      return box;
    }),
  );
  say(number ? `${number} found` : "Nothing has such a name.");
  choose(options()[0]);
}

function say(words: string): void {
  status.textContent = words;
  status.classList.toggle("sr", list.childElementCount > 0);
}

function option(thing: Thing, number: number): HTMLAnchorElement {
  const link = Object.assign(document.createElement("a"), {
    id: `palette-option-${number}`,
    href: thing.href,
    role: "option",
    tabIndex: -1,
  });
  const detail = Object.assign(document.createElement("span"), {
    className: "cap trunc",
    textContent: thing.detail,
  });
  const name = Object.assign(document.createElement("span"), {
    className: "grow trunc",
    textContent: thing.name,
  });
  link.append(name, detail);
  link.addEventListener("pointermove", () => choose(link));
  return link;
}

function options(): HTMLAnchorElement[] {
  return [...list.querySelectorAll<HTMLAnchorElement>("[role=option]")];
}

function chosen(): HTMLAnchorElement | undefined {
  return options().find((link) => link.getAttribute("aria-selected") === "true");
}

function move(step: number): void {
  const all = options();
  const at = all.findIndex((link) => link === chosen());
  choose(all[(at + step + all.length) % all.length]);
}

function choose(link: HTMLAnchorElement | undefined): void {
  for (const each of options()) each.setAttribute("aria-selected", String(each === link));
  if (!link) return input.removeAttribute("aria-activedescendant");
  input.setAttribute("aria-activedescendant", link.id);
  link.scrollIntoView({ block: "nearest" });
}
