/** What every page has: theme, time zone, copy buttons, toasts, busy buttons. */
import { byId } from "./shared/dom";

const YEAR_S = 31_536_000;

function setCookie(name: string, value: string): void {
  document.cookie = `${name}=${value};path=/;max-age=${YEAR_S};samesite=lax`;
}

function readCookie(name: string): string | null {
  const found = document.cookie.split("; ").find((part) => part.startsWith(`${name}=`));
  return found ? found.slice(name.length + 1) : null;
}

function themeShown(): "light" | "dark" {
  const theme = document.documentElement.dataset["theme"];
  if (theme === "light" || theme === "dark") return theme;
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

document.addEventListener("click", (event) => {
  const target = event.target as Element;
  const themeButton = target.closest("[data-theme-switch]");
  if (themeButton) {
    event.preventDefault();
    const next = themeShown() === "dark" ? "light" : "dark";
    document.documentElement.dataset["theme"] = next;
    setCookie("theme", next);
    return;
  }
  if (target.closest("[data-palette]") && byId("palette")) {
    event.preventDefault();
    void openPalette();
    return;
  }
  const copyButton = target.closest<HTMLElement>("[data-copy]");
  if (copyButton) {
    const text = byId(copyButton.dataset["copy"] ?? "")?.textContent?.trim() ?? "";
    void navigator.clipboard.writeText(text).then(() => toast("ok", "Copied"));
    return;
  }
  for (const open of document.querySelectorAll<HTMLDetailsElement>("details[data-menu][open]")) {
    if (!open.contains(target)) open.open = false;
  }
});

/** The palette's script is fetched when it is first wanted. */
async function openPalette(): Promise<void> {
  const { open } = await import("./palette");
  open();
}

document.addEventListener("keydown", (event) => {
  if (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey) && byId("palette")) {
    event.preventDefault();
    void openPalette();
    return;
  }
  if (event.key !== "Escape") return;
  for (const open of document.querySelectorAll<HTMLDetailsElement>("details[data-menu][open]"))
    open.open = false;
});

// One submit per form: the second click of a double click goes nowhere.
document.addEventListener("submit", (event) => {
  const form = event.target as HTMLFormElement;
  const question =
    (event.submitter as HTMLElement | null)?.dataset["confirm"] ?? form.dataset["confirm"];
  if (question && !window.confirm(question)) {
    event.preventDefault();
    return;
  }
  if (form.dataset["sent"]) {
    event.preventDefault();
    return;
  }
  if (form.method === "post" && !event.defaultPrevented) {
    form.dataset["sent"] = "1";
    event.submitter?.setAttribute("aria-busy", "true");
    // A page shown again from the back-forward cache may be sent again.
    window.addEventListener("pageshow", () => release(form), { once: true });
  }
});

export function release(form: HTMLFormElement): void {
  delete form.dataset["sent"];
  for (const button of form.querySelectorAll("[aria-busy]")) button.removeAttribute("aria-busy");
}

export function toast(tone: "ok" | "bad", text: string): void {
  const shelf = byId("toasts");
  if (!shelf) return;
  const item = document.createElement("div");
  item.className = `toast ${tone}`;
  item.setAttribute("role", tone === "ok" ? "status" : "alert");
  item.tabIndex = 0;
  item.textContent = text;
  shelf.append(item);
  let timer = 0;
  const start = () => (timer = window.setTimeout(() => item.remove(), 6000));
  const hold = () => window.clearTimeout(timer);
  item.addEventListener("pointerenter", hold);
  item.addEventListener("focusin", hold);
  item.addEventListener("pointerleave", start);
  item.addEventListener("focusout", start);
  start();
}

// The server prints times in this zone from the next page on.
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
if (zone && readCookie("tz") !== zone) {
  const first = readCookie("tz") === null;
  setCookie("tz", zone);
  const shown = document.documentElement.dataset["tz"];
  // Where cookies are refused the reload would not help, and would never end.
  if (
    first &&
    readCookie("tz") === zone &&
    shown !== zone &&
    document.querySelector("time") &&
    !document.querySelector("form[method=post] .field")
  ) {
    location.reload();
  }
}
