/** The card in which a decision is checked: a button, then every step with its result. */
import { parseUsd, usdExact } from "../shared/format";
import { decisionCheck, type Claim, type Report } from "./check";
import { say } from "./report";

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
  // Of a bid that was told its price first, the market has it; nobody types it.
  const fixed = form.dataset["limit"];
  const typed = form.querySelector<HTMLInputElement>("input[name=limit]")?.value ?? "";
  const limit = fixed === undefined ? parseUsd(typed) : Number(fixed);
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
