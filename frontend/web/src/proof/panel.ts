/** The card in which a decision is checked: a button, then every step with its result. */
import { parseUsd, usdExact } from "../shared/format";
import { decisionCheck, type Claim, type Report } from "./check";

/** Until this has run the button waits: pressed sooner, it would fetch the bare record. */
export function proofPanel(): void {
  for (const button of document.querySelectorAll<HTMLButtonElement>(
    "form[data-proof] button[type=submit]",
  )) {
    button.disabled = false;
  }
  document.addEventListener("submit", (event) => {
    const form = (event.target as Element).closest<HTMLFormElement>("form[data-proof]");
    if (!form) return;
    event.preventDefault();
    void run(form);
  });
}

async function run(form: HTMLFormElement): Promise<void> {
  const result = form.querySelector<HTMLElement>("[data-proof-result]");
  const button = form.querySelector("button[type=submit]");
  if (!result || button?.getAttribute("aria-busy") === "true") return;
  const limit = parseUsd(form.querySelector<HTMLInputElement>("input[name=limit]")?.value ?? "");
  if (limit === null) return say(result, "warn", "Give your limit in dollars, such as 9.00.", []);
  if (!globalThis.crypto?.subtle) {
    const words =
      "This browser computes SHA-256 only over HTTPS or on this machine itself. Download the record and check it where you like.";
    return say(result, "warn", words, []);
  }
  button?.setAttribute("aria-busy", "true");
  try {
    const reply = await fetch(form.action, { headers: { Accept: "application/json" } });
    if (!reply.ok) throw new Error(`the market answered ${reply.status}`);
    const report = await decisionCheck(await reply.text(), claimOf(form, limit));
    show(result, report, limit);
  } catch (error) {
    const broken = error instanceof SyntaxError;
    const words = broken
      ? `The record cannot be read: ${error.message}.`
      : "The record did not arrive. Nothing is known yet; try again.";
    say(result, broken ? "bad" : "warn", words, []);
  } finally {
    button?.removeAttribute("aria-busy");
  }
}

function claimOf(form: HTMLFormElement, limitMicros: number): Claim {
  const { zone = "", bid = "", position, hash = "", payment } = form.dataset;
  return {
    zone,
    bidId: bid,
    position: Number(position),
    hash,
    admitted: payment !== undefined,
    paymentMicros: payment === undefined ? null : Number(payment),
    limitMicros,
  };
}

function show(result: HTMLElement, report: Report, limit: number): void {
  const wrong = report.steps.filter((step) => !step.ok).length;
  if (report.ok) say(result, "ok", "Checked in this browser. Everything holds.", report.steps);
  else if (report.onlyLimit)
    say(
      result,
      "warn",
      `The record was made with another limit than ${usdExact(limit)}. Is that exactly what you bid? Everything else holds. If you are sure of your limit, keep the record and write to the operator.`,
      report.steps,
    );
  else
    say(
      result,
      "bad",
      `${wrong} of ${report.steps.length} checks failed. Do not trust this decision; write to the operator and keep the record.`,
      report.steps,
    );
}

function say(
  result: HTMLElement,
  tone: "ok" | "bad" | "warn",
  words: string,
  steps: Report["steps"],
): void {
  const verdict = document.createElement("p");
  verdict.className = `verdict ${tone}`;
  verdict.append(sign(tone), words);
  const list = document.createElement("ol");
  list.className = "checks";
  for (const step of steps) {
    const item = document.createElement("li");
    item.className = step.ok ? "ok" : "bad";
    const title = Object.assign(document.createElement("b"), { textContent: step.title });
    const body = document.createElement("span");
    body.append(title, step.detail);
    item.append(sign(step.ok ? "ok" : "bad"), body);
    list.append(item);
  }
  result.dataset["tone"] = tone;
  result.replaceChildren(verdict, ...(steps.length ? [list] : []));
}

const SIGNS = {
  ok: ["M3.5 8.5l3 3 6-7", "holds"],
  bad: ["M4.5 4.5l7 7M11.5 4.5l-7 7", "does not hold"],
  warn: ["M8 4.5v4.5M8 11.5h.01", "not known"],
} as const;

/** A mark with its meaning in words, for those who do not see its shape or colour. */
function sign(tone: keyof typeof SIGNS): Element {
  const [path, words] = SIGNS[tone];
  const box = document.createElement("i");
  const ns = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(ns, "svg");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("aria-hidden", "true");
  const line = document.createElementNS(ns, "path");
  line.setAttribute("d", path);
  svg.append(line);
  box.append(svg, Object.assign(document.createElement("span"), { className: "sr", textContent: words }));
  return box;
}
