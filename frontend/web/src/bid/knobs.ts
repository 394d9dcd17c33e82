/** The two handles of the curve, by pointer and by keyboard. */
import { draw } from "../shared/dom";
import { usd } from "../shared/format";
import { snapDeadline, soonest, treadAt, type Quote } from "./quote";

export interface CurveState {
  quote: Quote;
  deadline: number;
  /** Micro-dollars; `null` until one is typed. */
  limit: number | null;
}

export interface CurveEvents {
  deadline: (at: number, done: boolean) => void;
  limit: (micros: number, done: boolean) => void;
}

/** Where the plot lies in the drawing, and what it spans. */
export interface Scale {
  left: number;
  right: number;
  top: number;
  bottom: number;
  width: number;
  height: number;
  from: number;
  to: number;
  high: number;
}

/** While a handle is dragged the axis stands still under it. */
let held: number | null = null;

export function heldCeiling(): number | null {
  return held;
}

export function limitKnob(
  svg: SVGSVGElement,
  state: CurveState,
  scale: Scale,
  y: number,
  small: boolean,
  events: CurveEvents,
): void {
  const step = 10 ** Math.floor(Math.log10(Math.max(scale.high, 10))) / 40;
  const knob = draw(svg, "g", {
    class: "knob lim",
    role: "slider",
    tabindex: 0,
    id: "knob-limit",
    "aria-label": "Most it is worth to you",
    "aria-orientation": "vertical",
    "aria-valuemin": 0,
    "aria-valuemax": scale.high / 1e6,
    "aria-valuenow": (state.limit ?? 0) / 1e6,
    "aria-valuetext": state.limit === null ? "not set" : usd(state.limit),
  });
  const words = state.limit === null ? "set" : usd(state.limit);
  const width = (small ? 58 : 88) + words.length * 7.4;
  const x = scale.width - scale.right - width;
  draw(knob, "rect", { x: x - 3, y: y - 16, width: width + 6, height: 32, rx: 16, class: "halo" });
  draw(knob, "rect", { x, y: y - 13, width, height: 26, rx: 13, class: "lim-plate" });
  draw(knob, "text", { x: x + 13, y: y + 4.5, class: "t-ink2" }, small ? "Limit" : "Your limit");
  draw(
    knob,
    "text",
    { x: x + width - 13, y: y + 4.5, "text-anchor": "end", class: "b t-ink" },
    words,
  );
  const rounded = (micros: number) => Math.max(step, Math.round(micros / step) * step);
  follow(svg, knob, scale.high, (event, done) => {
    const box = svg.getBoundingClientRect();
    const share =
      1 - (event.clientY - box.top - scale.top) / (scale.height - scale.top - scale.bottom);
    events.limit(rounded(Math.min(1, Math.max(0, share)) * scale.high), done);
  });
  knob.addEventListener("keydown", (event) => {
    const move = keyMove(event);
    if (move === null) return;
    const to =
      move === Infinity
        ? scale.high
        : move === -Infinity
          ? step
          : (state.limit ?? scale.high / 2) + move * step * 4;
    events.limit(rounded(Math.max(step, to)), true);
  });
}

export function deadlineKnob(
  svg: SVGSVGElement,
  state: CurveState,
  place: {
    X: (at: number) => number;
    base: number;
    top: number;
    handle: number;
    at: (s: number) => string;
  },
  scale: Scale,
  events: CurveEvents,
): void {
  const { handle: x, base, top, at } = place;
  const here = treadAt(state.quote.curve, state.deadline);
  const first = soonest(state.quote);
  const knob = draw(svg, "g", {
    class: "knob dl",
    role: "slider",
    tabindex: 0,
    id: "knob-deadline",
    "aria-label": "Deadline",
    "aria-valuemin": first,
    "aria-valuemax": state.quote.horizonEnd,
    "aria-valuenow": state.deadline,
    "aria-valuetext": `${at(state.deadline)}, ${here ? `price ${usd(here.price)}` : "too soon"}`,
  });
  const text = at(state.deadline);
  const width = 40 + text.length * 7;
  draw(knob, "path", { d: `M${x} ${top}V${base}`, class: "pin" });
  draw(knob, "rect", {
    x: x - width / 2 - 3,
    y: base + 5,
    width: width + 6,
    height: 36,
    rx: 18,
    class: "halo",
  });
  draw(knob, "path", {
    d: `M${x - 5} ${base + 9}L${x} ${base + 3}L${x + 5} ${base + 9}Z`,
    class: "red",
  });
  draw(knob, "rect", { x: x - width / 2, y: base + 8, width, height: 30, rx: 15, class: "red" });
  for (const dx of [12, 16]) {
    for (const dy of [-4, 0, 4])
      draw(knob, "circle", { cx: x - width / 2 + dx, cy: base + 23 + dy, r: 1.1, class: "grip" });
  }
  draw(knob, "text", { x: x + 7, y: base + 27.5, "text-anchor": "middle", class: "b t-on" }, text);
  const span = scale.to - scale.from;
  follow(svg, knob, scale.high, (event, done) => {
    const box = svg.getBoundingClientRect();
    const share =
      (event.clientX - box.left - scale.left) / (scale.width - scale.left - scale.right);
    events.deadline(snapDeadline(state.quote, scale.from + share * span), done);
  });
  knob.addEventListener("keydown", (event) => {
    const move = keyMove(event);
    if (move === null) return;
    const to =
      move === Infinity
        ? state.quote.horizonEnd
        : move === -Infinity
          ? first
          : state.deadline + move * state.quote.slot;
    events.deadline(snapDeadline(state.quote, to), true);
  });
}

/** Arrows move one step, Page keys six, Home and End to the ends. */
function keyMove(event: KeyboardEvent): number | null {
  const moves: Record<string, number> = {
    ArrowRight: 1,
    ArrowUp: 1,
    ArrowLeft: -1,
    ArrowDown: -1,
    PageUp: 6,
    PageDown: -6,
    End: Infinity,
    Home: -Infinity,
  };
  const move = moves[event.key];
  if (move === undefined) return null;
  event.preventDefault();
  return move;
}

function follow(
  svg: SVGSVGElement,
  knob: Element,
  ceiling: number,
  move: (event: PointerEvent, done: boolean) => void,
): void {
  knob.addEventListener("pointerdown", (down) => {
    down.preventDefault();
    held = ceiling;
    // The knob is redrawn while it moves, so the drawing holds the pointer.
    svg.setPointerCapture((down as PointerEvent).pointerId);
    const onMove = (event: PointerEvent) => move(event, false);
    const onUp = (event: PointerEvent) => {
      svg.removeEventListener("pointermove", onMove);
      svg.removeEventListener("pointerup", onUp);
      svg.removeEventListener("pointercancel", onUp);
      held = null;
      if (event.type === "pointerup") move(event, true);
    };
    svg.addEventListener("pointermove", onMove);
    svg.addEventListener("pointerup", onUp);
    svg.addEventListener("pointercancel", onUp);
  });
}
