/** The new-bid page: data is checked and prices move while the form is filled. */
import { onResize } from "../shared/chart";
import { byId, pageData, setText, throttle } from "../shared/dom";
import { localInput, parseUsd, usdInput } from "../shared/format";
import { progressWords, sendFile, showUpload } from "../shared/upload";
import { answerWords, showNudges, showQuote } from "./card";
import { forgetLimit, recallLimit, rememberLimit } from "./kept_limit";
import { drawCurve } from "./curve";
import { treadAt, type Quote } from "./quote";
import { whyNotYet } from "./ready";

const RENEW_AT_LEAST_MS = 5000;
/** A file that is being read is asked after so often. */
const LOOK_AGAIN_MS = 1000;
const FAILED = "The check did not come back. Your form is as you left it; try again.";
const form = byId<HTMLFormElement>("bid-form");
const svg = byId<SVGSVGElement>("curve");
let quote: Quote | null = null;
let quotedAt = 0;
let asking: AbortController | null = null;
let isUploading = false;
let lookAgain = 0;
let focusKnob: string | null = null;
/** Somebody chose the deadline; until then it follows the data. */
let deadlineChosen = new URLSearchParams(location.search).has("deadline");

const deadlineField = () => byId<HTMLInputElement>("id_deadline");
const priceField = () => byId<HTMLInputElement>("id_price");
const limit = (): number | null => parseUsd(priceField()?.value ?? "");

function deadline(): number {
  const typed = Date.parse(deadlineField()?.value ?? "") / 1000;
  return Number.isFinite(typed) ? typed : (quote?.askedDeadline ?? 0);
}

function chooseDeadline(at: number): void {
  const field = deadlineField();
  deadlineChosen = true;
  if (field) field.value = localInput(at, quote?.horizonEnd);
}

const paysByCard = (): boolean =>
  form?.querySelector<HTMLInputElement>("input[name=pay]:checked")?.value === "card";
const keepsBox = () => byId("keeps-limit")?.querySelector<HTMLInputElement>("input") ?? null;

/** The limit stays in this browser; a card is asked for it, so then it cannot. */
const keepsLimit = (): boolean => !paysByCard() && (keepsBox()?.checked ?? false);

/** Have the market tell its price: what the form sends has no limit. */
function withholdLimit(submitted: HTMLFormElement): void {
  const [field, asks] = [priceField(), submitted.querySelector<HTMLInputElement>("[name=asks_price]")];
  const key = submitted.querySelector<HTMLInputElement>("[name=key]")?.value;
  const micros = limit();
  if (!field || !asks || !key || micros === null) return;
  rememberLimit(`form-${key}`, micros);
  // The next job is worth something else.
  forgetLimit("draft");
  asks.value = "1";
  field.removeAttribute("name");
  // A page shown again from the back-forward cache is as it was.
  window.addEventListener("pageshow", () => {
    field.name = "price";
    asks.value = "";
  });
}

/** Spoken at most once a second, and only what is new. */
const announce = throttle(() => {
  if (quote) setText("q-news", answerWords(quote, deadline(), limit()));
}, 1000);

if (form && svg) {
  const table = document.querySelector<HTMLDetailsElement>("[data-curve-table]");
  if (table) table.open = false;
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
    // A form that is left and found again has it still.
    if (micros !== null && keepsLimit()) rememberLimit("draft", micros);
    else forgetLimit("draft");
  });
  form.addEventListener("click", (event) => {
    const button = (event.target as Element).closest<HTMLButtonElement>("button");
    if (button?.matches("[data-check]")) {
      event.preventDefault();
      void ask(false, button.name === "decided" ? button : null);
    } else if (button?.matches("[data-upload-stop]")) asking?.abort();
  });
  form.addEventListener("submit", (event) => {
    const pressed = event.submitter as HTMLButtonElement | null;
    if (pressed?.value === "place" && keepsLimit()) withholdLimit(form);
  });
  const key = form.querySelector<HTMLInputElement>("[name=key]")?.value ?? "";
  const kept = recallLimit("draft") ?? recallLimit(`form-${key}`);
  const typed = priceField();
  if (typed && !typed.value && kept !== null) typed.value = usdInput(kept);
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
  document.querySelector<HTMLElement>("[data-curve-table]")?.setAttribute("data-ready", "");
  if (document.querySelector("[data-reading]"))
    lookAgain = window.setTimeout(() => void ask(), LOOK_AGAIN_MS);
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
  if (target.matches("[name=pay], [name=card]") || target === keepsBox()) return show();
  // What becomes of rows is sent by its own button, once all of it is chosen.
  if (target.matches("[name=name]") || target.closest(".choices")) return;
  void ask();
}

/**
 * Send the form as it stands to be checked, and put the parts of the answer in place. To `renew`
 * is to ask for today's price of what was asked before: the deadline stays.
 */
async function ask(renew = false, pressed: HTMLButtonElement | null = null): Promise<void> {
  if (!form) return;
  window.clearTimeout(lookAgain);
  asking?.abort();
  const control = (asking = new AbortController());
  const body = new FormData(form);
  body.set("do", "check");
  if (keepsLimit()) body.delete("price");
  if (pressed) body.set(pressed.name, pressed.value);
  // The server moves a deadline that is still the one offered to where there are plans.
  if (deadlineChosen || renew) body.delete("offered_deadline");
  else body.set("offered_deadline", deadlineField()?.value ?? "");
  const file = body.get("file");
  const sent = !renew && file instanceof File && file.name ? file : null;
  if (!sent) body.delete("file");
  form.setAttribute("aria-busy", "true");
  isUploading = sent !== null;
  show();
  try {
    const text = sent ? await upload(sent, body, control.signal) : await post(body, control.signal);
    const page = new DOMParser().parseFromString(text, "text/html");
    if (!page.getElementById("bid-form")) throw new Error("the answer is not the form");
    if (asking === control) isUploading = false;
    replaceParts(page);
    adopt();
  } catch (error) {
    const stopped = control.signal.aborted;
    if (sent) showUpload(form, stopped ? "Stopped. Nothing was stored." : FAILED, null);
    if (stopped) return;
    setText("q-news", FAILED);
    console.error(error);
  } finally {
    if (asking === control) {
      isUploading = false;
      form.removeAttribute("aria-busy");
      show();
    }
  }
}

async function post(body: FormData, signal: AbortSignal): Promise<string> {
  const reply = await fetch(form!.action, { method: "POST", body, signal });
  return reply.text();
}

async function upload(file: File, body: FormData, signal: AbortSignal): Promise<string> {
  const progress = (share: number) =>
    showUpload(form!, progressWords(file.name, file.size, share), share);
  progress(0);
  return (await sendFile(form!.action, body, signal, progress)).text;
}

/** What the server drew takes the place of what is there, but for the field somebody types in. */
function replaceParts(page: Document): void {
  const active = document.activeElement;
  const open = new Map(
    [...form!.querySelectorAll<HTMLDetailsElement>("details[id]")].map((d) => [d.id, d.open]),
  );
  for (const part of form!.querySelectorAll<HTMLElement>("[data-part]")) {
    if (active?.matches("input[type=text]") && part.contains(active)) continue;
    const next = page.getElementById(part.id);
    if (next) part.replaceWith(document.adoptNode(next));
  }
  for (const details of form!.querySelectorAll<HTMLDetailsElement>("details[id]")) {
    const was = open.get(details.id);
    // What the server opened, for a message within, stays open.
    if (was !== undefined && !details.querySelector(".hint.bad")) details.open = was;
  }
  if (active?.id && document.activeElement !== active) byId(active.id)?.focus({ preventScroll: true });
}

function show(): void {
  if (quote && svg) {
    const chosen = deadline();
    if (quote.curve.length) draw(svg, quote, chosen);
    showQuote(quote, chosen, limit());
    showNudges(quote, chosen, (at) => {
      chooseDeadline(at);
      show();
      void ask();
    });
  }
  showReady();
}

function draw(drawing: SVGSVGElement, of: Quote, chosen: number): void {
  // A drawing replaces its handles; the one in use stays in use.
  const active = document.activeElement;
  if (active && drawing.contains(active)) focusKnob = active.id;
  drawCurve(
    drawing,
    { quote: of, deadline: chosen, limit: limit() },
    {
      deadline: (at, done) => {
        chooseDeadline(at);
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

/** Place bid can be pressed when nothing is missing; otherwise it says what is. */
function showReady(): void {
  if (!form) return;
  const data = form.querySelector<HTMLInputElement>("input[name=dataset], select[name=dataset]");
  const byCard = paysByCard();
  byId("keeps-limit")?.toggleAttribute("hidden", byCard);
  const why = whyNotYet({
    hasData: Boolean(data?.value),
    isUploading,
    fault: byId("part-errors")?.querySelector<HTMLElement>("[data-fault]")?.innerText.trim() ?? "",
    quote,
    deadline: deadline(),
    limit: limit(),
    available: Number(byId("balance")?.dataset["available"] ?? Infinity),
    byCard,
    keepsLimit: keepsLimit(),
  });
  for (const button of document.querySelectorAll<HTMLButtonElement>("[data-place]"))
    button.disabled = why !== "";
  setText("place-why", why);
  byId("place-why")?.toggleAttribute("hidden", why === "");
  byId("q-hold")?.toggleAttribute("hidden", why !== "");
  setText(
    "q-hold",
    keepsLimit()
      ? "Nothing is held before your browser takes the price, and then the price alone."
      : "The limit is held until the answer, then the rest comes straight back.",
  );
  const tread = quote && treadAt(quote.curve, deadline());
  const held = keepsLimit() ? (tread?.price ?? 0) : (limit() ?? 0);
  const short = tread !== null && held > Number(byId("balance")?.dataset["available"] ?? Infinity);
  byId("short")?.toggleAttribute("hidden", !short || byCard);
  announce();
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
  setText("q-expiry", left > 0 ? `Holds for ${Math.ceil(left)} s` : "Renewing");
  const isBusy = form.getAttribute("aria-busy") === "true" || form.dataset["sent"];
  const isSeen = document.visibilityState === "visible";
  if (left <= 0 && !isBusy && isSeen && Date.now() - quotedAt > RENEW_AT_LEAST_MS) void ask(true);
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
    const input = host.querySelector<HTMLInputElement>("input[type=file]");
    if (!zone || !input || !event.dataTransfer?.files.length) return;
    event.preventDefault();
    delete zone.dataset["over"];
    input.files = event.dataTransfer.files;
    void ask();
  });
}
