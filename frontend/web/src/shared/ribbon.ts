/** The ribbon's now line, between two drawings by the server. */
import { clock } from "./format";

/** Move the line and what is filled behind it; at the edge of a block ask for a new drawing. */
export function moveNow(redraw: () => void): void {
  const ribbon = document.querySelector<SVGSVGElement>("[data-ribbon]:not([data-over])");
  if (!ribbon) return;
  const from = Number(ribbon.dataset["start"]);
  const until = Number(ribbon.dataset["end"]);
  const now = Date.now() / 1000;
  const place = ((now - from) / (until - from)) * 100;
  const line = ribbon.querySelector("[data-now]");
  if (line && place >= 0) line.setAttribute("x", `${Math.min(100, place).toFixed(3)}%`);
  const text = ribbon.querySelector("[data-now-text]");
  if (text) text.textContent = clock(new Date(), new Date(), until - from < 3600);
  keepInside(ribbon, Math.min(100, Math.max(0, place)) / 100);
  for (const block of ribbon.querySelectorAll<SVGSVGElement>("[data-fill]")) {
    const start = Number(block.dataset["fill"]);
    const end = Number(block.dataset["until"]);
    const share = Math.min(1, Math.max(0, (now - start) / (end - start)));
    block.setAttribute("width", `${(share * 100).toFixed(2)}%`);
    if (share === 1 && !block.dataset["passed"]) {
      block.dataset["passed"] = "1";
      redraw();
    }
  }
  if (place > 100) redraw();
}

/** The flag with the time stays on the drawing when its line is near an end. */
function keepInside(ribbon: SVGSVGElement, share: number): void {
  const flag = ribbon.querySelector<SVGGElement>("[data-now-plate]");
  const plate = flag?.querySelector("rect");
  const { width } = ribbon.getBoundingClientRect();
  if (!flag || !plate || !width) return;
  const half = Number(plate.getAttribute("width")) / 2;
  const x = share * width;
  const shift = Math.max(0, half - x) + Math.min(0, width - half - x);
  flag.setAttribute("transform", `translate(${shift.toFixed(1)} 0)`);
}
