/** Price by deadline: a staircase with two handles (components.md, 2.2). */
import { niceTicks, timeTicks } from "../shared/chart";
import { draw } from "../shared/dom";
import { clock, usd } from "../shared/format";
import {
  deadlineKnob,
  heldCeiling,
  limitKnob,
  type CurveEvents,
  type CurveState,
  type Scale,
} from "./knobs";
import { earliestWin, treadAt, wins } from "./quote";

/** The plot shows the bend of the staircase and the limit, not the whole first riser. */
function ceilingOf(state: CurveState): number {
  const held = heldCeiling();
  if (held !== null) return held;
  const prices = state.quote.curve.map((tread) => tread.price);
  const limit = state.limit ?? 0;
  const least = prices.at(-1) ?? limit;
  const here = treadAt(state.quote.curve, state.deadline)?.price ?? least;
  const bend = Math.min((prices[0] ?? limit) * 1.12, here * 3);
  // A limit far above every price waits at the top instead of flattening the stairs.
  return Math.max(1, bend, here * 1.3, Math.min(limit * 1.25, here * 4));
}

export function drawCurve(svg: SVGSVGElement, state: CurveState, events: CurveEvents): void {
  const { quote, deadline, limit } = state;
  const box = svg.getBoundingClientRect();
  if (!box.width) return;
  const small = box.width < 480;
  const scale: Scale = {
    left: small ? 44 : 54,
    right: 20,
    top: 26,
    bottom: 52,
    width: box.width,
    height: box.height,
    from: quote.now,
    to: quote.horizonEnd,
    high: ceilingOf(state),
  };
  const X = (at: number) =>
    scale.left +
    ((at - scale.from) / (scale.to - scale.from || 1)) * (scale.width - scale.left - scale.right);
  const Y = (micros: number) =>
    scale.top +
    (1 - Math.min(micros, scale.high) / scale.high) * (scale.height - scale.top - scale.bottom);
  const base = Y(0);
  const top = scale.top;
  const edge = scale.width - scale.right;
  const handle = X(deadline);
  const here = treadAt(quote.curve, deadline);
  const ok = limit === null ? here !== null : wins(here, limit);
  const nowDate = new Date(quote.now * 1000);
  const withSeconds = scale.to - scale.from < 3600;
  const at = (seconds: number) => clock(new Date(seconds * 1000), nowDate, withSeconds);

  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${box.width} ${box.height}`);
  const defs = draw(svg, "defs", {});
  const shade = draw(defs, "linearGradient", { id: "curve-in", x1: 0, x2: 0, y1: 0, y2: 1 });
  draw(shade, "stop", { offset: 0, class: "in-0" });
  draw(shade, "stop", { offset: 1, class: "in-1" });
  const hatch = draw(defs, "pattern", {
    id: "curve-no",
    width: 6,
    height: 6,
    patternTransform: "rotate(45)",
    patternUnits: "userSpaceOnUse",
  });
  draw(hatch, "path", { d: "M0 0V6", class: "no-line" });

  const prices = niceTicks(0, scale.high / 1e6, 5);
  draw(svg, "text", { x: scale.left - 9, y: 10, "text-anchor": "end" }, "Price");
  // One number of decimals for the whole axis.
  const needed = prices.map((value) => String(value).split(".")[1]?.length ?? 0);
  const decimals = Math.min(6, Math.max(2, ...needed));
  for (const value of prices) {
    const y = Y(value * 1e6);
    draw(svg, "path", { d: `M${scale.left} ${y}H${edge}`, class: value ? "gl" : "ax" });
    draw(svg, "text", { x: scale.left - 9, y: y + 4, "text-anchor": "end" }, `$${value.toFixed(decimals)}`);
  }
  const offset = -nowDate.getTimezoneOffset() * 60;
  for (const tick of timeTicks(scale.from, scale.to, small ? 4 : 9, offset)) {
    draw(svg, "path", { d: `M${X(tick)} ${base}v4`, class: "ax" });
    if (Math.abs(X(tick) - handle) > 62 && X(tick) < edge + scale.right - 24) {
      draw(
        svg,
        "text",
        { x: X(tick), y: base + 18, "text-anchor": "middle" },
        clock(new Date(tick * 1000), new Date(tick * 1000), withSeconds),
      );
    }
  }

  const first = quote.curve[0];
  const tooSoonEnd = first ? X(first.deadline) : edge;
  draw(svg, "rect", {
    x: X(scale.from),
    y: top,
    width: Math.max(0, tooSoonEnd - X(scale.from)),
    height: base - top,
    class: "no",
  });
  if (first) {
    let area = `M${X(first.deadline)} ${top}`;
    quote.curve.forEach((tread, i) => {
      const until = quote.curve[i + 1]?.deadline ?? scale.to;
      area += `L${X(tread.deadline)} ${Y(tread.price)}L${X(until)} ${Y(tread.price)}`;
    });
    draw(svg, "path", { d: `${area}L${edge} ${top}Z`, class: "in" });
    if (!small) {
      const y = limit === null || Y(limit) < top + 44 ? top + 48 : top + 18;
      draw(
        svg,
        "text",
        { x: edge - 10, y, "text-anchor": "end", class: "b t-accent" },
        "You are in",
      );
    }
    if (!small && tooSoonEnd - X(scale.from) > 96) {
      plate(svg, X(scale.from) + 10, base - 26, ["Too soon:", `${at(first.deadline)} earliest`]);
    }
    let previous = top;
    for (const [i, tread] of quote.curve.entries()) {
      const until = quote.curve[i + 1]?.deadline ?? scale.to;
      if (tread.price > scale.high) continue;
      const y = Y(tread.price);
      draw(svg, "path", { d: `M${X(tread.deadline)} ${previous}V${y}`, class: "riser" });
      previous = y;
      draw(svg, "path", {
        d: `M${X(tread.deadline)} ${y}H${X(until)}`,
        class: tread === here ? "tread on" : "tread",
      });
      if (X(until) - X(tread.deadline) > 52 && tread !== here) {
        draw(
          svg,
          "text",
          {
            x: (X(tread.deadline) + X(until)) / 2,
            y: y - 8,
            "text-anchor": "middle",
            class: "lab",
          },
          usd(tread.price),
        );
      }
    }
  }

  // Without a limit the handle waits at the top, where it takes nothing away.
  const limitY = limit === null ? top + 14 : Y(limit);
  if (limit !== null) draw(svg, "path", { d: `M${scale.left} ${limitY}H${edge}`, class: "limit" });
  if (here) {
    const priceY = Y(here.price);
    const rightSide = handle < scale.width - 190;
    const textX = rightSide ? handle + 13 : handle - 13;
    const anchor = rightSide ? "start" : "end";
    draw(svg, "path", {
      d: `M${handle} ${base}V${ok ? priceY : limitY}`,
      class: ok ? "pay" : "faint",
    });
    if (limit !== null)
      draw(svg, "path", { d: `M${handle} ${priceY}V${limitY}`, class: ok ? "keep" : "short" });
    if (limit === null) {
      label(svg, textX, (base + priceY) / 2 + 5, anchor, `Pay ${usd(here.price)}`, "t-accent");
    } else if (ok) {
      label(svg, textX, (base + priceY) / 2 + 5, anchor, `Pay ${usd(here.price)}`, "t-accent");
      if (priceY - limitY > 26)
        label(
          svg,
          textX,
          (priceY + limitY) / 2 + 3,
          anchor,
          `Keep ${usd(limit - here.price)}`,
          "t-good",
        );
    } else {
      label(
        svg,
        textX,
        priceY - 12,
        anchor,
        limit === here.price ? "Must be above the price" : `${usd(here.price - limit)} short`,
        "t-bad",
      );
      const later = earliestWin(quote.curve, limit, deadline);
      if (later) {
        draw(svg, "circle", { cx: X(later.deadline), cy: Y(later.price), r: 6, class: "win" });
        const words = `${small ? "" : "Wins from "}${at(later.deadline)}, ${usd(later.price)}`;
        const flip = X(later.deadline) > scale.width - 220;
        label(
          svg,
          X(later.deadline) + (flip ? -13 : 13),
          Y(later.price) - 10,
          flip ? "end" : "start",
          words,
          "t-good",
        );
      }
    }
    draw(svg, "circle", { cx: handle, cy: priceY, r: 6, class: "pt" });
  }
  limitKnob(svg, state, scale, limitY, small, events);
  deadlineKnob(svg, state, { X, base, top, handle, at }, scale, events);
}

function plate(svg: SVGSVGElement, x: number, y: number, lines: string[]): void {
  const group = draw(svg, "g", {});
  lines.forEach((line, i) => draw(group, "text", { x, y: y + i * 15, class: "t-ink2" }, line));
  const box = group.getBBox();
  const back = draw(group, "rect", {
    x: box.x - 6,
    y: box.y - 3,
    width: box.width + 12,
    height: box.height + 6,
    rx: 4,
    class: "t-on",
  });
  group.prepend(back);
}

function label(
  svg: SVGSVGElement,
  x: number,
  y: number,
  anchor: string,
  text: string,
  tone: string,
): void {
  const node = draw(svg, "text", { x, y, "text-anchor": anchor, class: `b ${tone}` }, text);
  const box = node.getBBox();
  const back = draw(svg, "rect", {
    x: box.x - 6,
    y: box.y - 2,
    width: box.width + 12,
    height: box.height + 4,
    rx: 5,
    class: "plate",
  });
  svg.insertBefore(back, node);
}
