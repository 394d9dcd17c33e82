import { describe, expect, it } from "vitest";
import { aheadOfPlan, progressOf, shareAt } from "../src/job/charts";
import { fromSnapshot, type JobState } from "../src/job/state";
import type { Point } from "../src/shared/chart";
import { usdExact } from "../src/shared/format";

/** Half of the work in the first hundred seconds, a pause as long, then the rest. */
const planned: Point[] = [
  [1000, 0],
  [1100, 0.5],
  [1200, 0.5],
  [1300, 1],
];

describe("progress against the plan", () => {
  it("is what the reports say, by when they were made", () => {
    const point = (at: string, step: number) => ({ at, step });
    const state = fromSnapshot({
      type: "snapshot",
      seq: 1,
      status: "running",
      progress: { total_steps: 8 },
      points: [point("2026-11-20T13:00:00+00:00", 2), point("2026-11-20T13:00:10+00:00", 9)],
      log: [],
    });
    const start = Date.UTC(2026, 10, 20, 13) / 1000;
    expect(progressOf(state)).toEqual([
      [start, 0.25],
      [start + 10, 1],
    ]);
    const waiting: JobState = { ...state, progress: { ...state.progress, total_steps: null } };
    expect(progressOf(waiting)).toEqual([]);
  });

  it("reads the plan at any moment, also before and after it", () => {
    expect([900, 1000, 1050, 1150, 1250, 2000].map((at) => shareAt(planned, at))).toEqual([
      0, 0, 0.25, 0.5, 0.75, 1,
    ]);
    expect(shareAt([], 1000)).toBe(0);
  });

  it("counts how far ahead or behind the work is, in seconds", () => {
    expect(aheadOfPlan(planned, 1050, 0.25)).toBe(0);
    expect(aheadOfPlan(planned, 1050, 0.75)).toBe(200);
    expect(aheadOfPlan(planned, 1250, 0.25)).toBe(-200);
    expect(aheadOfPlan(planned, 1250, 1)).toBe(50);
    expect(aheadOfPlan(planned, 1400, 1)).toBe(0);
    expect(aheadOfPlan([[1000, 0]], 1000, 0.5)).toBeNull();
  });

  it("is neither ahead nor behind in a planned pause with the work before it done", () => {
    expect([1090, 1150, 1210].map((at) => aheadOfPlan(planned, at, 0.5))).toEqual([10, 0, -10]);
  });
});

describe("exact amounts", () => {
  it("have their digits and no others", () => {
    expect([14_625, 9_000_000, 1_234_567_890_000, 0].map(usdExact)).toEqual([
      "$0.014625",
      "$9.00",
      "$1,234,567.89",
      "$0.00",
    ]);
  });
});
