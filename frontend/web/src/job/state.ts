/** What a job's page knows: a snapshot, and how each event changes it. */
import type { Message } from "../shared/socket";

export interface MetricPoint {
  /** When it was measured, ISO. */
  at: string;
  step: number;
  epoch: number;
  train_loss: number | null;
  valid_loss: number | null;
  learning_rate: number | null;
  grad_norm: number | null;
}

export interface Progress {
  step: number;
  total_steps: number | null;
  epoch: number;
  train_loss: number | null;
  valid_loss: number | null;
  learning_rate: number | null;
  grad_norm: number | null;
  samples_per_s: number | null;
  eta_at: string | null;
}

export interface JobState {
  seq: number;
  status: string;
  progress: Progress;
  points: MetricPoint[];
  log: string[];
}

const LOG_SHOWN = 200;

export function fromSnapshot(message: Message): JobState {
  return {
    seq: message.seq,
    status: String(message["status"]),
    progress: message["progress"] as Progress,
    points: message["points"] as MetricPoint[],
    log: message["log"] as string[],
  };
}

/** The state after an event; `apply_job_event` of the server's tests is its twin. */
export function apply(state: JobState, event: Message): JobState {
  if (event.seq <= state.seq) return state;
  const next: JobState = { ...state, seq: event.seq, status: String(event["status"]) };
  if (event.type === "event") return { ...next, progress: event["progress"] as Progress };
  const names = Object.keys(state.progress) as (keyof Progress)[];
  return {
    ...next,
    progress: Object.fromEntries(names.map((name) => [name, event[name]])) as unknown as Progress,
    points: extend(state.points, event["points"] as MetricPoint[]),
    log: [...state.log, ...(event["log"] as string[])].slice(-LOG_SHOWN),
  };
}

/** Append points to a rising series; steps done again replace what was reported before. */
export function extend(
  series: readonly MetricPoint[],
  fresh: readonly MetricPoint[],
): MetricPoint[] {
  const rising = [...series];
  for (const point of fresh) {
    while (rising.length && rising.at(-1)!.step > point.step) rising.pop();
    rising.push(point);
  }
  return rising;
}
