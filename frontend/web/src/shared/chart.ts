import { draw } from "./dom";

export type Point = readonly [number, number];

export interface Series {
  points: readonly Point[];
  /** Class of the line's colour: `c1`, `c2`, `c3` or `cg`. */
  tone: string;
  raw?: boolean;
  dot?: boolean;
  area?: boolean;
  /** Measured one by one: dots, and no line between them. */
  each?: boolean;
  /** What was expected or was before: dashed, behind the rest. */
  ghost?: boolean;
}

export interface Mark {
  x: number;
  text: string;
  /** `dead` for a deadline; plain otherwise. */
  css?: string;
  /** It lies beyond the chart: only named, at the foot of the right edge. */
  beyond?: boolean;
}

export interface ChartOptions {
  series: readonly Series[];
  x: readonly [number, number];
  y: readonly [number, number];
  xTicks: readonly (readonly [number, string])[];
  yTicks: readonly (readonly [number, string])[];
  marks?: readonly Mark[];
  left?: number;
  /** Ticks lie inside the axis: all are centred, and those too near an end go without words. */
  xInside?: boolean;
  /** What the y axis measures, above its numbers. */
  yName?: string;
  label: string;
}

/** At most `limit` round numbers inside `lo..hi`. */
export function niceTicks(lo: number, hi: number, limit = 4): number[] {
  if (!(hi > lo)) return [];
  for (let power = Math.floor(Math.log10((hi - lo) / limit)); ; power++) {
    for (const base of [1, 2, 2.5, 5]) {
      const step = base * 10 ** power;
      const first = Math.ceil(lo / step - 1e-9);
      const last = Math.floor(hi / step + 1e-9);
      if (last - first + 1 > limit) continue;
      return Array.from({ length: last - first + 1 }, (_, i) =>
        Number(((first + i) * step).toPrecision(12)),
      );
    }
  }
}

const TICK_STEPS_S = [
  1, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400,
];

/** Round clock times between `from` and `to`, at most `limit` of them. */
export function timeTicks(from: number, to: number, limit: number, offsetS: number): number[] {
  const step = TICK_STEPS_S.find((candidate) => (to - from) / candidate <= limit) ?? 86400;
  const first = Math.ceil((from + offsetS) / step) * step - offsetS;
  const ticks: number[] = [];
  for (let at = first; at <= to; at += step) ticks.push(at);
  return ticks;
}

/** A little room above and below, also around a single value. */
export function padded(lo: number, hi: number): [number, number] {
  const room = hi > lo ? (hi - lo) * 0.06 : Math.abs(hi) * 0.1 || 1;
  return [lo - room, hi + room];
}

/** Exponential smoothing with the bias of the first value taken out. */
export function smooth(points: readonly Point[], keep: number): Point[] {
  let mean = 0;
  let weight = 0;
  return points.map(([x, y]) => {
    mean = mean * keep + y * (1 - keep);
    weight = weight * keep + (1 - keep);
    return [x, mean / weight] as const;
  });
}

/** Keep at most `limit` points: the lowest and highest of each bucket, so spikes stay. */
export function thin(points: readonly Point[], limit: number): readonly Point[] {
  if (points.length <= limit) return points;
  const buckets = Math.floor(limit / 2);
  const out: Point[] = [];
  for (let bucket = 0; bucket < buckets; bucket++) {
    const slice = points.slice(
      Math.floor((bucket * points.length) / buckets),
      Math.floor(((bucket + 1) * points.length) / buckets),
    );
    let low = slice[0]!;
    let high = slice[0]!;
    for (const point of slice) {
      if (point[1] < low[1]) low = point;
      if (point[1] > high[1]) high = point;
    }
    if (low === high) out.push(low);
    else out.push(...(low[0] < high[0] ? [low, high] : [high, low]));
  }
  return out;
}

/** Of a figure in the axis text, a little generously. */
const CHARACTER_PX = 6.4;

/** Draw a line chart into `svg` at its present size. */
export function lineChart(svg: SVGSVGElement, options: ChartOptions): void {
  const { width, height } = svg.getBoundingClientRect();
  if (!width || !height) return;
  const left = options.left ?? 40;
  const right = 6;
  const top = options.yName ? 22 : 6;
  const bottom = 22;
  const [yLow, yHigh] = options.y;
  const X = (value: number) =>
    left + ((value - options.x[0]) / (options.x[1] - options.x[0] || 1)) * (width - left - right);
  const Y = (value: number) =>
    top + (1 - (value - yLow) / (yHigh - yLow || 1)) * (height - top - bottom);
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("aria-label", options.label);
  if (options.yName) draw(svg, "text", { x: 0, y: 10, class: "axis-name" }, options.yName);
  for (const [value, text] of options.yTicks) {
    draw(svg, "path", { class: "gl", d: `M${left} ${Y(value).toFixed(1)}H${width - right}` });
    draw(svg, "text", { x: left - 8, y: Y(value) + 4, "text-anchor": "end" }, text);
  }
  let free = -Infinity;
  options.xTicks.forEach(([value, text], index) => {
    const x = X(value);
    if (options.xInside && (x < left + 20 || x > width - right - 20)) return;
    const ends = options.xInside ? [] : [0, options.xTicks.length - 1];
    const anchor = index === ends[0] ? "start" : index === ends[1] ? "end" : "middle";
    const wide = text.length * CHARACTER_PX;
    const from = x - { start: 0, middle: wide / 2, end: wide }[anchor];
    const last = options.xTicks.at(-1)!;
    const limit = anchor === "middle" && ends.length ? X(last[0]) - last[1].length * CHARACTER_PX : Infinity;
    // A label that would run into its neighbour is left out; the last one never is.
    if (anchor !== "end" && (from < free || from + wide + 8 > limit)) return;
    free = from + wide + 8;
    draw(svg, "text", { x, y: height - 4, "text-anchor": anchor }, text);
  });
  for (const { x, text, css = "", beyond = false } of options.marks ?? []) {
    if (beyond) {
      draw(svg, "text", { x: width - right, y: height - bottom - 7, class: css, "text-anchor": "end" }, text);
      continue;
    }
    const late = X(x) > width - 120;
    draw(svg, "path", { class: `mark ${css}`, d: `M${X(x).toFixed(1)} ${top}V${height - bottom}` });
    draw(
      svg,
      "text",
      { x: X(x) + (late ? -5 : 5), y: top + 8, class: css, "text-anchor": late ? "end" : "start" },
      text,
    );
  }
  for (const series of options.series) {
    const points = thin(series.points, Math.max(200, Math.floor(width)));
    if (!points.length) continue;
    const path = points.map(([x, y]) => `${X(x).toFixed(1)} ${Y(y).toFixed(1)}`).join("L");
    if (series.area) {
      const base = height - bottom;
      const from = X(points[0]![0]).toFixed(1);
      const to = X(points.at(-1)![0]).toFixed(1);
      draw(svg, "path", {
        class: `area ${series.tone}`,
        d: `M${from} ${base}L${path}L${to} ${base}Z`,
      });
    }
    if (series.each) {
      for (const [x, y] of points)
        draw(svg, "circle", { class: `dot ${series.tone}`, cx: X(x), cy: Y(y), r: 4 });
      continue;
    }
    const css = `line ${series.tone}${series.raw ? " raw" : ""}${series.ghost ? " ghost" : ""}`;
    draw(svg, "path", { class: css, d: `M${path}` });
    const end = points.at(-1)!;
    if (series.dot)
      draw(svg, "circle", { class: `dot ${series.tone}`, cx: X(end[0]), cy: Y(end[1]), r: 4.5 });
  }
}

/** Call `render` now and whenever `svg` changes size. */
export function onResize(svg: Element, render: () => void): void {
  new ResizeObserver(() => render()).observe(svg);
}
