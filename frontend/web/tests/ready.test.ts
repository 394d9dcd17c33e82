import { describe, expect, it } from "vitest";
import type { Quote } from "../src/bid/quote";
import { whyNotYet, type Filled } from "../src/bid/ready";

const quote: Quote = {
  now: 0,
  expires: 30,
  horizonEnd: 1000,
  slot: 10,
  slotEdge: 10,
  curve: [{ deadline: 100, price: 2_000_000, finish: 90 }],
  askedDeadline: 100,
  lines: [],
  refusal: null,
  message: "",
};
const filled: Filled = {
  hasData: true,
  isUploading: false,
  fault: "",
  quote,
  deadline: 100,
  limit: 2_000_001,
  available: 2_000_001,
  byCard: false,
};
const why = (changed: Partial<Filled>) => whyNotYet({ ...filled, ...changed });

describe("a bid can be placed", () => {
  it("when its limit is above the price, in time, and in the wallet", () => {
    expect(why({})).toBe("");
  });

  it("not before its data is there", () => {
    expect(why({ isUploading: true })).toBe("The upload is not finished.");
    expect(why({ hasData: false, quote: null })).toBe("Upload or choose data first.");
  });

  it("not with a setting that the server refused", () => {
    expect(why({ fault: "Correct LoRA rank.", quote: null })).toBe("Correct LoRA rank.");
  });

  it("not without a quote, and not by a deadline that no plan meets", () => {
    expect(why({ quote: null })).toBe("There is no quote yet. Give a deadline.");
    expect(why({ deadline: 99 })).toBe("No plan is ready by this deadline.");
    const hopeless = { ...quote, curve: [], message: "All slots are sold." };
    expect(why({ quote: hopeless })).toBe("All slots are sold.");
  });

  it("not without a limit, at the price, or with more than the wallet has", () => {
    expect(why({ limit: null })).toBe("Say what it is worth to you.");
    expect(why({ limit: 2_000_000 })).toBe("Your limit must be above the price.");
    expect(why({ available: 2_000_000 })).toBe(
      "A bid holds its limit, and your wallet has $2.00 available.",
    );
  });

  it("asks no wallet where a card pays, and no card for less than it can pay", () => {
    expect(why({ available: 0, byCard: true })).toBe("");
    const cheap = { ...quote, curve: [{ deadline: 100, price: 100_000, finish: 90 }] };
    expect(why({ quote: cheap, limit: 500_000, byCard: true })).toBe("");
    expect(why({ quote: cheap, limit: 499_999, byCard: true })).toBe(
      "Cards pay $0.50 or more. Use the wallet for less.",
    );
  });
});
