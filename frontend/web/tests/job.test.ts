import { describe, expect, it } from "vitest";
import { apply, extend, fromSnapshot, type MetricPoint } from "../src/job/state";
import type { Message } from "../src/shared/socket";

const point = (step: number, loss = 1): MetricPoint => ({
  at: `2026-11-20T13:00:${String(step).padStart(2, "0")}+00:00`,
  step,
  epoch: 0,
  train_loss: loss,
  valid_loss: null,
  learning_rate: null,
  grad_norm: null,
});
const progress = (step: number) => ({
  step,
  total_steps: 10,
  epoch: 0,
  train_loss: 1,
  valid_loss: null,
  learning_rate: null,
  grad_norm: null,
  samples_per_s: null,
  eta_at: null,
});
const snapshot: Message = {
  type: "snapshot",
  seq: 4,
  status: "running",
  progress: progress(2),
  points: [point(1), point(2)],
  log: ["one"],
};

describe("a job's state", () => {
  it("follows progress", () => {
    const event: Message = {
      type: "progress",
      seq: 5,
      status: "running",
      ...progress(3),
      points: [point(3)],
      log: ["two"],
    };
    const after = apply(fromSnapshot(snapshot), event);
    expect(after.progress.step).toBe(3);
    expect(after.points.map((p) => p.step)).toEqual([1, 2, 3]);
    expect(after.log).toEqual(["one", "two"]);
    expect(apply(after, event)).toBe(after);
  });

  it("follows events, which carry where the job stands", () => {
    const event: Message = { type: "event", seq: 5, status: "succeeded", progress: progress(10) };
    const after = apply(fromSnapshot(snapshot), event);
    expect(after.status).toBe("succeeded");
    expect(after.progress.step).toBe(10);
    expect(after.points).toHaveLength(2);
  });

  it("replaces steps that were done again after a node was lost", () => {
    const series = extend([point(1), point(2), point(3, 9)], [point(2, 7), point(3, 5)]);
    expect(series.map((p) => [p.step, p.train_loss])).toEqual([
      [1, 1],
      [2, 1],
      [2, 7],
      [3, 5],
    ]);
  });
});
