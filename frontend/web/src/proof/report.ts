/** A verdict in words, with every step that led to it. */
import type { Step } from "./check";

export type Tone = "ok" | "bad" | "warn";

/** Show a verdict and its steps in place of what stood there. */
export function say(
  result: HTMLElement,
  tone: Tone,
  words: string,
  steps: readonly Step[],
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
function sign(tone: Tone): Element {
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
