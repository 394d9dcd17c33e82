/** A job's page, live: loss, progress, the now line, events. */
import { lineChart, niceTicks, onResize, padded, smooth, type Point } from "../shared/chart";
import { byId, refreshParts, setText, throttle } from "../shared/dom";
import { clock, count, duration } from "../shared/format";
import { LiveStream, type Message, type StreamState } from "../shared/socket";
import { apply, fromSnapshot, type JobState, type MetricPoint } from "./state";

const head = byId("job-head");
let state: JobState | null = null;
let keep = 0.7;
let streamState: StreamState = "live";
let lastUpdateAt = Date.now();

if (head) start(head);

function start(element: HTMLElement): void {
  const stream = new LiveStream({
    path: `/ws/jobs/${element.dataset["job"]}/`,
    pollUrl: element.dataset["poll"] ?? "",
    onSnapshot: (message) => {
      const before = state;
      state = fromSnapshot(message);
      show();
      if (before && before.seq !== state.seq) void refreshParts(tick);
    },
    onEvent: (message) => take(message),
    onState: (now, at) => {
      streamState = now;
      lastUpdateAt = at;
      showFreshness();
    },
  });
  stream.open();
  window.setInterval(tick, 500);
  window.setInterval(showFreshness, 1000);
  for (const id of ["chart-loss", "chart-lr", "chart-gn"]) {
    const svg = byId<SVGSVGElement>(id);
    if (svg) onResize(svg, showCharts);
  }
  document.addEventListener("click", (event) => {
    const button = (event.target as Element).closest<HTMLElement>("[data-smooth]");
    if (!button) return;
    keep = Number(button.dataset["smooth"]);
    for (const other of document.querySelectorAll("[data-smooth]")) {
      other.setAttribute("aria-pressed", String(other === button));
    }
    showCharts();
  });
  tick();
}

// Events change what the server draws (plan, pill, lists); progress does not.
const redraw = throttle(() => void refreshParts(tick), 700);

function take(message: Message): void {
  if (!state) return;
  const before = state;
  state = apply(state, message);
  lastUpdateAt = Date.now();
  if (message.type === "event" || before.status !== state.status) redraw();
  show();
}

function show(): void {
  showNumbers();
  showCharts();
  showLog();
  showFreshness();
}

function showNumbers(): void {
  if (!state) return;
  const { progress, status } = state;
  const total = progress.total_steps;
  if (!total) return;
  const share = Math.min(1, progress.step / total);
  setText("j-share", `${Math.floor(share * 100)} %`);
  setText("j-step", `step ${count(progress.step)} of ${count(total)}`);
  byId("j-fill")?.setAttribute("width", `${(share * 100).toFixed(2)}%`);
  byId("j-bar")?.setAttribute("aria-valuenow", String(Math.round(share * 100)));
  if (status === "running") {
    const left = progress.eta_at ? (Date.parse(progress.eta_at) - Date.now()) / 1000 : null;
    const speed = progress.samples_per_s
      ? `, ${progress.samples_per_s.toFixed(1)} samples a second`
      : "";
    setText("j-words", left === null ? `Running${speed}` : `${duration(left)} left${speed}`);
  }
  const figure = (value: number | null, digits: number) =>
    value === null ? "" : value.toFixed(digits);
  setText("k-train", figure(progress.train_loss, 3));
  setText("k-valid", figure(progress.valid_loss, 3));
  setText("k-lr", progress.learning_rate === null ? "" : progress.learning_rate.toExponential(1));
  setText("k-gn", figure(progress.grad_norm, 2));
}

function series(name: keyof MetricPoint): Point[] {
  const out: Point[] = [];
  for (const point of state?.points ?? []) {
    const value = point[name];
    if (typeof value === "number" && Number.isFinite(value)) out.push([point.step, value]);
  }
  return out;
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

function steps(): { x: readonly [number, number]; ticks: [number, string][] } {
  const end = Math.max(1, state?.progress.total_steps ?? 1);
  return {
    x: [0, end],
    ticks: [0, 0.25, 0.5, 0.75, 1].map((share) => [share * end, count(share * end)]),
  };
}

function showCharts(): void {
  if (!state) return;
  const { x, ticks } = steps();
  const loss = byId<SVGSVGElement>("chart-loss");
  const train = series("train_loss");
  // Every report repeats the newest evaluation; only the evaluations themselves are points.
  const valid = series("valid_loss").filter(([, v], i, all) => i === 0 || v !== all[i - 1]![1]);
  if (loss && (train.length || valid.length)) {
    const y = padded(...range([...train, ...valid]));
    const yTicks = niceTicks(...y).map((value) => [value, String(value)] as const);
    const last = train.at(-1)?.[1];
    const lines = [
      ...(keep > 0 ? [{ points: train, tone: "c3", raw: true }] : []),
      { points: keep > 0 ? smooth(train, keep) : train, tone: "c3", dot: true },
      { points: valid, tone: "c2", dot: true },
    ];
    const label = `Training loss ${last?.toFixed(3) ?? "unknown"}, validation loss ${
      valid.at(-1)?.[1].toFixed(3) ?? "unknown"
    } at step ${count(state.progress.step)}`;
    lineChart(loss, { series: lines, x, y, xTicks: ticks, yTicks, left: 44, label });
    loss.dataset["points"] = String(train.length);
  }
  small("chart-lr", series("learning_rate"), "c1", "Learning rate", (value) =>
    value.toExponential(0),
  );
  small("chart-gn", series("grad_norm"), "cg", "Gradient norm", String);
}

function small(
  id: string,
  points: Point[],
  tone: string,
  name: string,
  words: (value: number) => string,
): void {
  const svg = byId<SVGSVGElement>(id);
  if (!svg || !points.length) return;
  const { x } = steps();
  const y: [number, number] = [0, range(points)[1] * 1.08 || 1];
  const yTicks = niceTicks(...y, 3).map((value) => [value, words(value)] as const);
  const xTicks = [0, x[1] / 2, x[1]].map((step) => [step, count(step)] as const);
  lineChart(svg, {
    series: [{ points, tone, dot: true }],
    x,
    xTicks,
    y,
    yTicks,
    left: 40,
    label: `${name}, last ${words(points.at(-1)![1])}`,
  });
}

function showLog(): void {
  const box = byId("log");
  if (!box || !state) return;
  const follow = box.scrollTop + box.clientHeight >= box.scrollHeight - 24;
  const text = state.log.join("\n");
  if (box.textContent !== text) box.textContent = text;
  if (follow) box.scrollTop = box.scrollHeight;
}

function showFreshness(): void {
  const dot = document.querySelector<HTMLElement>("[data-live-state]");
  if (!dot) return;
  const age = (Date.now() - lastUpdateAt) / 1000;
  const words: Record<StreamState, string> = {
    live: age < 2 ? "Updated just now" : `Updated ${duration(age)} ago`,
    polling: "Reconnecting, reading every few seconds",
    stale: `Last update ${duration(age)} ago`,
  };
  dot.dataset["state"] = streamState === "live" && age > 15 ? "stale" : streamState;
  const text = dot.querySelector("[data-live-text]");
  if (text) text.textContent = words[streamState];
}

/** Move the now line; at the edge of a block the server draws the ribbon again. */
function tick(): void {
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
