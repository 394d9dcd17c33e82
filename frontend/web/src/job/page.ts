/** A job's page, live: loss, progress, the now line, events. */
import { onResize } from "../shared/chart";
import { byId, refreshParts, setText, throttle } from "../shared/dom";
import { count, duration } from "../shared/format";
import { moveNow } from "../shared/ribbon";
import { LiveStream, type Message, type StreamState } from "../shared/socket";
import { proofPanel } from "../proof/panel";
import { drawCharts } from "./charts";
import { apply, fromSnapshot, type JobState } from "./state";

const head = byId("job-head");
let state: JobState | null = null;
let keep = 0.7;
let streamState: StreamState = "live";
let lastUpdateAt = Date.now();
// Events change what the server draws (plan, pill, lists); progress does not.
const redraw = throttle(() => void refreshParts(tick), 700);

if (head) start(head);
proofPanel();

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
  for (const id of ["chart-loss", "chart-plan", "chart-lr", "chart-gn"]) {
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

function showCharts(): void {
  if (state) drawCharts(state, keep);
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

function tick(): void {
  moveNow(redraw);
}
