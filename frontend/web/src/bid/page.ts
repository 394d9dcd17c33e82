/** The new-bid page: data is checked and prices move while the form is filled. */
import { onResize } from "../shared/chart";
import { byId, pageData, setText } from "../shared/dom";
import {
  bytes,
  clock,
  duration,
  localInput,
  parseUsd,
  spare,
  usd,
  usdInput,
} from "../shared/format";
import { drawCurve } from "./curve";
import { earliestWin, nudges, treadAt, wins, type Quote } from "./quote";

const RENEW_AT_LEAST_MS = 5000;
const form = byId<HTMLFormElement>("bid-form");
const svg = byId<SVGSVGElement>("curve");
let quote: Quote | null = null;
let quotedAt = 0;
let asking: AbortController | null = null;
let focusKnob: string | null = null;
/** Somebody chose the deadline; until then it follows the data. */
let deadlineChosen = new URLSearchParams(location.search).has("deadline");

const deadlineField = () => byId<HTMLInputElement>("id_deadline");
const priceField = () => byId<HTMLInputElement>("id_price");

function deadline(): number {
  const typed = Date.parse(deadlineField()?.value ?? "") / 1000;
  return Number.isFinite(typed) ? typed : (quote?.askedDeadline ?? 0);
}

const limit = (): number | null => parseUsd(priceField()?.value ?? "");

if (form && svg) {
  adopt();
  onResize(svg, show);
  form.addEventListener("change", (event) => changed(event.target as HTMLElement));
  form.addEventListener("input", (event) => {
    if (event.target === deadlineField()) deadlineChosen = true;
    if (event.target === priceField() || event.target === deadlineField()) show();
  });
  priceField()?.addEventListener("blur", () => {
    const micros = limit();
    const field = priceField();
    if (micros !== null && field) field.value = usdInput(micros);
  });
  form.addEventListener("click", (event) => {
    const button = (event.target as Element).closest<HTMLButtonElement>("[data-check]");
    if (!button) return;
    event.preventDefault();
    void ask();
  });
  dropzone(form);
  window.setInterval(countDown, 500);
}

/** Take over the quote the server left in the page. */
function adopt(): void {
  quote = pageData<Quote>("quote-data");
  quotedAt = Date.now();
  const asked = quote?.askedDeadline;
  const field = deadlineField();
  if (!deadlineChosen && field && asked && Math.abs(asked - deadline()) > 1)
    field.value = localInput(asked, quote?.horizonEnd);
  const drawn = quote !== null && quote.curve.length > 0;
  for (const selector of ["[data-curve-wrap]", "[data-curve-key]"]) {
    document.querySelector<HTMLElement>(selector)?.toggleAttribute("hidden", !drawn);
  }
  const table = document.querySelector<HTMLDetailsElement>("[data-curve-table]");
  if (table) {
    table.open = false;
    table.dataset["ready"] = "";
  }
  show();
}

function changed(target: HTMLElement): void {
  if (target === priceField()) return show();
  if (target === deadlineField()) {
    show();
    return void ask();
  }
  if (target.matches("[data-other]")) {
    const chosen = (target as HTMLSelectElement).value;
    const hidden = byId<HTMLInputElement>("id_dataset");
    if (!chosen || !hidden) return;
    hidden.value = chosen;
  }
  if (target.matches("[name=name]")) return;
  void ask();
}

/** Send the form as it stands to be checked, and put the parts of the answer in place. */
async function ask(): Promise<void> {
  if (!form) return;
  asking?.abort();
  const control = (asking = new AbortController());
  const body = new FormData(form);
  body.set("do", "check");
  if (!deadlineChosen) body.set("untouched", "1");
  const file = body.get("file");
  const words = form.querySelector<HTMLElement>("[data-upload-state]");
  if (file instanceof File && file.size > 0) {
    if (words) words.textContent = `Uploading and checking ${file.name}, ${bytes(file.size)}`;
  } else body.delete("file");
  form.setAttribute("aria-busy", "true");
  try {
    const reply = await fetch(form.action, { method: "POST", body, signal: control.signal });
    const page = new DOMParser().parseFromString(await reply.text(), "text/html");
    if (!page.getElementById("bid-form")) throw new Error(`the server answered ${reply.status}`);
    const open = byId<HTMLDetailsElement>("advanced")?.open ?? false;
    const focused = document.activeElement?.id;
    for (const part of form.querySelectorAll<HTMLElement>("[data-part]")) {
      const next = page.getElementById(part.id);
      if (next) part.replaceWith(document.adoptNode(next));
    }
    if (open) byId<HTMLDetailsElement>("advanced")?.setAttribute("open", "");
    if (focused) byId(focused)?.focus({ preventScroll: true });
    adopt();
  } catch (error) {
    if (control.signal.aborted) return;
    if (words) words.textContent = "The check did not come back. Your form is kept; try again.";
    console.error(error);
  } finally {
    if (asking === control) form.removeAttribute("aria-busy");
  }
}

function show(): void {
  if (!quote || !svg) return;
  const chosen = deadline();
  const worth = limit();
  if (quote.curve.length) {
    // A drawing replaces its handles; the one in use stays in use.
    const active = document.activeElement;
    if (active && svg.contains(active)) focusKnob = active.id;
    drawCurve(
      svg,
      { quote, deadline: chosen, limit: worth },
      {
        deadline: (at, done) => {
          const field = deadlineField();
          deadlineChosen = true;
          if (field) field.value = localInput(at, quote?.horizonEnd);
          focusKnob = "knob-deadline";
          show();
          if (done) void ask();
        },
        limit: (micros) => {
          const field = priceField();
          if (field) field.value = usdInput(micros);
          focusKnob = "knob-limit";
          show();
        },
      },
    );
    if (focusKnob) byId<SVGGElement>(focusKnob)?.focus({ preventScroll: true });
    focusKnob = null;
  }
  showQuote(chosen, worth);
  showNudges(chosen);
}

function pill(tone: string, words: string): void {
  const box = byId("q-pill");
  if (!box) return;
  const span = document.createElement("span");
  span.className = `pill ${tone}`;
  span.textContent = words;
  box.replaceChildren(span);
}

function showQuote(chosen: number, worth: number | null): void {
  if (!quote) return;
  const now = new Date();
  const here = treadAt(quote.curve, chosen);
  const at = (seconds: number) => clock(new Date(seconds * 1000), now, (quote?.slot ?? 60) < 60);
  const split = byId("q-split");
  const price = byId("q-price");
  price?.classList.toggle("short", !here);
  const away = chosen - now.getTime() / 1000;
  setText("dl-words", away > 0 ? `in ${duration(away)}` : "in the past");
  if (!here) {
    const first = quote.curve[0];
    pill("no", "No plan");
    setText("q-price", first ? "Too soon" : "No plan");
    setText("q-done", first ? `The earliest deadline is ${at(first.deadline)}` : "");
    setText("q-spare", first ? `, at ${usd(first.price)}.` : quote.message);
    setText("m-price", "No plan by then");
    setText("m-sub", first ? `from ${at(first.deadline)} on` : "");
    split?.setAttribute("hidden", "");
    return;
  }
  setText("q-price", usd(here.price));
  setText("q-done", `Done by ${at(here.finish)}`);
  setText("q-spare", `, ${spare(chosen - here.finish)}`);
  setText("m-price", usd(here.price));
  setText("m-sub", `done by ${at(here.finish)}`);
  const ok = worth !== null && wins(here, worth);
  if (worth === null) pill("", "Say what it is worth");
  else pill(ok ? "ok" : "no", ok ? "This bid wins" : "This bid does not win");
  split?.toggleAttribute("hidden", !ok);
  if (ok && worth !== null) {
    byId("q-bar")?.setAttribute("width", `${((here.price / worth) * 100).toFixed(2)}%`);
    setText("q-pay", usd(here.price));
    setText("q-keep", usd(worth - here.price));
    setText(
      "q-hold",
      `Holds ${usd(worth)}, charges ${usd(here.price)}, releases ${usd(worth - here.price)}`,
    );
  } else if (worth !== null) {
    const later = earliestWin(quote.curve, worth, chosen);
    setText(
      "q-hold",
      later
        ? `With this limit ${at(later.deadline)} would win at ${usd(later.price)}.`
        : `The price is ${usd(here.price)}; a bid must be above it.`,
    );
  } else
    setText("q-hold", "The limit is held until the answer, then the rest comes straight back.");
}

function showNudges(chosen: number): void {
  const shelf = byId("nudges");
  if (!shelf || !quote) return;
  const now = new Date();
  const found = nudges(
    quote.curve,
    chosen,
    quote.slot / 2,
    (later, saves) => `${duration(later)} later saves ${usd(saves)}`,
  );
  shelf.hidden = found.length === 0;
  shelf.replaceChildren(
    ...found.map((nudge) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "nudge";
      const line = document.createElement("b");
      for (const text of [
        clock(new Date(nudge.deadline * 1000), now, (quote?.slot ?? 60) < 60),
        usd(nudge.price),
      ]) {
        line.append(Object.assign(document.createElement("span"), { textContent: text }));
      }
      button.append(line, nudge.words);
      button.addEventListener("click", () => {
        const field = deadlineField();
        deadlineChosen = true;
        if (field) field.value = localInput(nudge.deadline, quote?.horizonEnd);
        show();
        void ask();
      });
      return button;
    }),
  );
}

/** The ring runs down; a quote that ran out is renewed while somebody looks. */
function countDown(): void {
  if (!quote || !form) return;
  const left = quote.expires - Date.now() / 1000;
  const whole = Math.max(1, quote.expires - quote.now);
  byId("q-ring")?.setAttribute(
    "stroke-dasharray",
    `${(Math.max(0, left / whole) * 37.7).toFixed(1)} 38`,
  );
  setText("q-expiry", left > 0 ? `Holds for ${duration(left)}` : "Renewing");
  const busy = form.getAttribute("aria-busy") === "true" || form.dataset["sent"];
  const typing =
    document.activeElement instanceof HTMLInputElement && form.contains(document.activeElement);
  if (
    left <= 0 &&
    !busy &&
    !typing &&
    document.visibilityState === "visible" &&
    Date.now() - quotedAt > RENEW_AT_LEAST_MS
  ) {
    void ask();
  }
}

function dropzone(host: HTMLElement): void {
  host.addEventListener("dragover", (event) => {
    const zone = (event.target as Element).closest<HTMLElement>("[data-dropzone]");
    if (!zone) return;
    event.preventDefault();
    zone.dataset["over"] = "";
  });
  host.addEventListener("dragleave", (event) => {
    delete (event.target as Element).closest<HTMLElement>("[data-dropzone]")?.dataset["over"];
  });
  host.addEventListener("drop", (event) => {
    const zone = (event.target as Element).closest<HTMLElement>("[data-dropzone]");
    const input = zone?.querySelector<HTMLInputElement>("input[type=file]");
    if (!zone || !input || !event.dataTransfer?.files.length) return;
    event.preventDefault();
    delete zone.dataset["over"];
    input.files = event.dataTransfer.files;
    void ask();
  });
}
