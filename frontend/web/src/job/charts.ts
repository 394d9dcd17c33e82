/** The charts of a job: loss, progress against the plan, learning rate, gradient norm. */
import { lineChart, niceTicks, padded, smooth, timeTicks, type Point } from "../shared/chart";
import { byId, pageData, setText } from "../shared/dom";
import { clock, count, duration } from "../shared/format";
import type { JobState, MetricPoint } from "./state";

/** What was promised, and an earlier run on the same data (`presenters/progress.py`). */
export interface PlanData {
  /** Unix seconds. */
  begun: number;
  deadline: number;
  /** Shares of the work the plan has done by these moments. */
  planned: Point[];
  earlier: { name: string; loss: Point[] } | null;
  /** Steps at which the job went on on another machine, and its name. */
  moves: [number, string][];
}

export function drawCharts(state: JobState, keep: number): void {
  const plan = pageData<PlanData>("plan-data");
  lossChart(state, keep, plan);
  if (plan) progressChart(state, plan);
  small(state, "chart-lr", "learning_rate", "c1", "Learning rate", (value) =>
    value.toExponential(0),
  );
  small(state, "chart-gn", "grad_norm", "cg", "Gradient norm", String);
}

function series(state: JobState, name: keyof MetricPoint): Point[] {
  const out: Point[] = [];
  for (const point of state.points) {
    const value = point[name];
    if (typeof value === "number" && Number.isFinite(value)) out.push([point.step, value]);
  }
  return out;
}

/** Share of the work done at each report, by the moment it was made. */
export function progressOf(state: JobState): Point[] {
  const total = state.progress.total_steps;
  if (!total) return [];
  return state.points.map((point) => [
    Date.parse(point.at) / 1000,
    Math.min(1, point.step / total),
  ]);
}

/** Of the work's own time; a deadline later than this is not on the chart. */
const DEADLINE_WITHIN = 2.2;

/**
 * How far ahead of the plan the work is, in seconds: negative when it is behind, nothing while the
 * plan itself stands where the work does, as in a planned pause.
 */
export function aheadOfPlan(planned: readonly Point[], at: number, share: number): number | null {
  if (planned.length < 2) return null;
  const reached = momentOf(planned, share, (y) => y >= share);
  const passed = share >= 1 ? Infinity : momentOf(planned, share, (y) => y > share);
  if (at < reached) return reached - at;
  return at > passed ? passed - at : 0;
}

/** When the plan has a share done: at the crossing into the first point that `holds`. */
function momentOf(
  planned: readonly Point[],
  share: number,
  holds: (share: number) => boolean,
): number {
  const i = planned.findIndex(([, y]) => holds(y));
  if (i < 0) return planned.at(-1)![0];
  if (i === 0) return planned[0]![0];
  const [t0, y0] = planned[i - 1]!;
  const [t1, y1] = planned[i]!;
  return y1 > y0 ? t0 + ((Math.max(y0, share) - y0) / (y1 - y0)) * (t1 - t0) : t1;
}

function range(points: readonly Point[]): [number, number] {
  let low = Infinity;
  let high = -Infinity;
  for (const [, value] of points) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  return [low, high];
}

function steps(state: JobState): { x: readonly [number, number]; ticks: [number, string][] } {
  const end = Math.max(1, state.progress.total_steps ?? 1);
  return {
    x: [0, end],
    ticks: [0, 0.25, 0.5, 0.75, 1].map((share) => [
      share * end,
      share === 1 ? `${count(end)} steps` : count(share * end),
    ]),
  };
}

function lossChart(state: JobState, keep: number, plan: PlanData | null): void {
  const svg = byId<SVGSVGElement>("chart-loss");
  const train = series(state, "train_loss");
  const valid = series(state, "valid_loss");
  if (!svg || !(train.length || valid.length)) return;
  const { x, ticks } = steps(state);
  const earlier = (plan?.earlier?.loss ?? []).filter(([step]) => step <= x[1]);
  const moves = plan?.moves ?? [];
  const y = padded(...range([...train, ...valid, ...earlier]));
  const last = train.at(-1)?.[1];
  lineChart(svg, {
    series: [
      ...(earlier.length ? [{ points: earlier, tone: "cg", ghost: true }] : []),
      ...(keep > 0 ? [{ points: train, tone: "c3", raw: true }] : []),
      { points: keep > 0 ? smooth(train, keep) : train, tone: "c3", dot: true },
      { points: valid, tone: "c2", each: true },
    ],
    x,
    y,
    xTicks: ticks,
    yTicks: niceTicks(...y).map((value) => [value, String(value)] as const),
    yName: "nats per token",
    marks: moves.map(([step, name]) => ({ x: step, text: `To ${name}`, css: "moved" })),
    left: 44,
    label: `Training loss ${last?.toFixed(3) ?? "unknown"}, validation loss ${
      valid.at(-1)?.[1].toFixed(3) ?? "unknown"
    } at step ${count(state.progress.step)}`,
  });
  svg.dataset["points"] = String(train.length);
  svg.dataset["moves"] = moves.map(([step]) => step).join(" ");
}

function progressChart(state: JobState, plan: PlanData): void {
  const svg = byId<SVGSVGElement>("chart-plan");
  if (!svg) return;
  const done = progressOf(state);
  const now = Date.now() / 1000;
  const running = ["queued", "running", "moving"].includes(state.status);
  const work = Math.max(plan.planned.at(-1)?.[0] ?? 0, done.at(-1)?.[0] ?? 0, plan.begun + 1);
  // A deadline far beyond the work is named at the edge rather than squeezing the lines.
  const near = plan.deadline - plan.begun < DEADLINE_WITHIN * (work - plan.begun);
  const until = plan.begun + (Math.max(work, near ? plan.deadline : 0) - plan.begun) * 1.03;
  const withSeconds = until - plan.begun < 3600;
  const at = (seconds: number) =>
    clock(new Date(seconds * 1000), new Date(seconds * 1000), withSeconds);
  const share = done.at(-1)?.[1] ?? 0;
  const marks = near
    ? [{ x: plan.deadline, text: `Deadline ${at(plan.deadline)}`, css: "dead" }]
    : [{ x: until, text: `Deadline ${at(plan.deadline)} →`, css: "dead", beyond: true }];
  const ahead = running ? aheadOfPlan(plan.planned, now, share) : null;
  setText(
    "k-ahead",
    ahead === null || Math.abs(ahead) < 1
      ? ""
      : `${duration(Math.abs(ahead))} ${ahead > 0 ? "ahead of the plan" : "behind the plan"}`,
  );
  const whole = (value: number) => `${Math.round(value * 100)} %`;
  lineChart(svg, {
    series: [
      { points: plan.planned, tone: "cg", ghost: true },
      { points: [[plan.begun, 0], ...done], tone: "c3", dot: true, area: true },
    ],
    x: [plan.begun, until],
    y: [0, 1.04],
    xTicks: timeTicks(plan.begun, until, 4, -new Date().getTimezoneOffset() * 60).map(
      (moment) => [moment, at(moment)] as const,
    ),
    xInside: true,
    yTicks: [0, 0.5, 1].map((value) => [value, whole(value)] as const),
    yName: "of the work",
    marks,
    left: 44,
    label: `${whole(share)} of the work done; the plan has ${whole(shareAt(plan.planned, running ? now : until))} done by ${running ? "now" : "its end"}`,
  });
}

/** What the plan has done by a moment. */
export function shareAt(planned: readonly Point[], at: number): number {
  let before: Point | null = null;
  for (const point of planned) {
    if (point[0] >= at) {
      if (!before) return 0;
      const part = (at - before[0]) / (point[0] - before[0] || 1);
      return before[1] + part * (point[1] - before[1]);
    }
    before = point;
  }
  return before?.[1] ?? 0;
}

function small(
  state: JobState,
  id: string,
  name: keyof MetricPoint,
  tone: string,
  title: string,
  words: (value: number) => string,
): void {
  const svg = byId<SVGSVGElement>(id);
  const points = series(state, name);
  if (!svg || !points.length) return;
  const { x } = steps(state);
  const y: [number, number] = [0, range(points)[1] * 1.08 || 1];
  lineChart(svg, {
    series: [{ points, tone, dot: true }],
    x,
    xTicks: [0, x[1] / 2, x[1]].map((step) => [step, count(step)] as const),
    y,
    yTicks: niceTicks(...y, 3).map((value) => [value, value ? words(value) : "0"] as const),
    left: 40,
    label: `${title}, last ${words(points.at(-1)![1])}`,
  });
}
