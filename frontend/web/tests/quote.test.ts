import { describe, expect, it } from "vitest";
import { earliestWin, nudges, snapDeadline, treadAt, wins, type Quote } from "../src/bid/quote";

const curve = [
  { deadline: 100, price: 900, finish: 90 },
  { deadline: 200, price: 500, finish: 150 },
  { deadline: 400, price: 300, finish: 390 },
];
const quote: Quote = {
  now: 55,
  expires: 85,
  horizonEnd: 600,
  slot: 10,
  slotEdge: 60,
  curve,
  askedDeadline: 200,
  lines: [],
  refusal: null,
  message: "",
};

describe("the price by deadline", () => {
  it("is that of the last tread that has begun", () => {
    expect(treadAt(curve, 99)).toBeNull();
    expect(treadAt(curve, 100)?.price).toBe(900);
    expect(treadAt(curve, 399)?.price).toBe(500);
    expect(treadAt(curve, 4000)?.price).toBe(300);
  });

  it("is won by a limit above it and never by one equal to it", () => {
    expect(wins(curve[1]!, 500)).toBe(false);
    expect(wins(curve[1]!, 501)).toBe(true);
    expect(wins(null, 1e9)).toBe(false);
  });

  it("names the earliest later deadline at which a limit wins", () => {
    expect(earliestWin(curve, 400, 100)?.deadline).toBe(400);
    expect(earliestWin(curve, 300, 100)).toBeNull();
  });

  it("moves the handle by whole slots, inside what is on sale", () => {
    expect(snapDeadline(quote, 204)).toBe(200);
    expect(snapDeadline(quote, 206)).toBe(210);
    expect(snapDeadline(quote, 9999)).toBe(600);
  });

  it("leaves half a minute after the earliest deadline, where slots are short", () => {
    expect(snapDeadline(quote, 10)).toBe(130);
    expect(snapDeadline({ ...quote, slot: 300, slotEdge: 100 }, 10)).toBe(100);
    expect(snapDeadline({ ...quote, horizonEnd: 110 }, 10)).toBe(110);
  });

  it("offers later deadlines that are cheaper, and none that is as good as here", () => {
    const words = (later: number, saves: number) => `${later}/${saves}`;
    expect(nudges(curve, 150, 5, words).map((n) => n.words)).toEqual(["50/400", "250/600"]);
    expect(nudges(curve, 198, 5, words).map((n) => n.deadline)).toEqual([400]);
    expect(nudges(curve, 500, 5, words)).toEqual([]);
  });
});
