import { describe, expect, it } from "vitest";
import { niceTicks, smooth, thin, timeTicks, type Point } from "../src/shared/chart";
import { bytes, duration, localInput, parseUsd, spare, usd, usdInput } from "../src/shared/format";

describe("money", () => {
  it("shows cents, and more only where cents would show nothing", () => {
    expect(usd(4_670_000)).toBe("$4.67");
    expect(usd(1_234_567_890_000)).toBe("$1,234,567.89");
    expect(usd(3_900)).toBe("$0.0039");
    expect(usd(1)).toBe("$0.000001");
    expect(usd(0)).toBe("$0.00");
  });

  it("is kept exact in a field", () => {
    expect(usdInput(1)).toBe("0.000001");
    expect(usdInput(9_000_000)).toBe("9.00");
    expect(usdInput(9_500_000)).toBe("9.50");
    expect(usdInput(1_250_100)).toBe("1.2501");
  });

  it("reads 9, 9.5 and 9,50 and refuses what is no amount", () => {
    expect(["9", "9.5", "9,50", "$9"].map(parseUsd)).toEqual([9e6, 9.5e6, 9.5e6, 9e6]);
    for (const text of ["", "0", "-1", "1e9", "NaN", "1.0000001", "1.2.3", "1,000"]) {
      expect(parseUsd(text)).toBeNull();
    }
  });
});

describe("time and sizes", () => {
  it("uses two units at most and never a negative number", () => {
    expect([0.31, 44, 90, 2640, 7800, 90_000].map(duration)).toEqual([
      "0.31 s",
      "44 s",
      "1 min 30 s",
      "44 min",
      "2 h 10 min",
      "1 d 1 h",
    ]);
    expect([1800, 0, -360].map(spare)).toEqual([
      "30 min to spare",
      "right on the deadline",
      "6 min late",
    ]);
    expect([999, 41_800_000].map(bytes)).toEqual(["999 B", "41.8 MB"]);
  });

  it("rounds a deadline up to a whole second unless that passes the end", () => {
    const at = Date.parse("2026-11-20T18:00:00") / 1000;
    expect(localInput(at + 0.2)).toBe("2026-11-20T18:00:01");
    expect(localInput(at + 0.2, at + 0.2)).toBe("2026-11-20T18:00:00");
  });

  it("places ticks at round clock times", () => {
    expect(timeTicks(3605, 3695, 4, 0)).toEqual([3630, 3660, 3690]);
  });
});

describe("charts", () => {
  it("have round ticks inside their range, four at most", () => {
    expect(niceTicks(0.57, 2.44)).toEqual([1, 1.5, 2]);
    expect(niceTicks(0, 0.01, 5)).toEqual([0, 0.0025, 0.005, 0.0075, 0.01]);
    expect(niceTicks(2, 2)).toEqual([]);
  });

  it("smooth without starting from nothing", () => {
    const flat: Point[] = [1, 2, 3].map((x) => [x, 5] as const);
    for (const [, y] of smooth(flat, 0.9)) expect(y).toBeCloseTo(5, 12);
  });

  it("keep the spikes when points are left out", () => {
    const points: Point[] = Array.from(
      { length: 5000 },
      (_, x) => [x, x === 2345 ? 99 : 1] as const,
    );
    const few = thin(points, 200);
    expect(few.length).toBeLessThanOrEqual(200);
    expect(few.some(([, y]) => y === 99)).toBe(true);
  });
});
