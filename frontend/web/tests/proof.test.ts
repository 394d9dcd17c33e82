import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { decisionCheck, type Claim } from "../src/proof/check";
import { canonical, isObject, type Value } from "../src/proof/record";

const record = readFileSync(new URL("./proof.json", import.meta.url), "utf8");
const { entries } = JSON.parse(record) as { entries: { hash: string }[] };
/** For a hundred and more proofs on a busy machine. */
const PATIENCE_MS = 60_000;
const claim: Claim = {
  zone: "demo",
  bidId: "bid_own",
  position: 4,
  hash: entries[3]!.hash,
  admitted: true,
  paymentMicros: 1,
  limitMicros: 60_000_001,
};

/** The record with one figure, word or hash forged, for every one that it has. */
function* forgeries(value: Value): Generator<{ at: string; forged: Value }> {
  if (Array.isArray(value)) {
    for (const [index, item] of (value as readonly Value[]).entries()) {
      for (const { at, forged } of forgeries(item))
        yield { at: `.${index}${at}`, forged: (value as readonly Value[]).with(index, forged) };
    }
  } else if (isObject(value)) {
    for (const [name, part] of Object.entries(value)) {
      for (const { at, forged } of forgeries(part))
        yield { at: `.${name}${at}`, forged: { ...value, [name]: forged } };
    }
  } else {
    yield { at: "", forged: forge(value) };
  }
}

function forge(scalar: Value): Value {
  if (typeof scalar === "string") return `${scalar}9`;
  if (typeof scalar === "number") return scalar === 0 ? 9 : scalar * (1 + Number.EPSILON);
  return scalar !== true;
}

/** The text of the record after a change of its value. */
function altered(change: (proof: any) => void): string {
  const proof = JSON.parse(record) as unknown;
  change(proof);
  return JSON.stringify(proof);
}

/** Titles of the steps that did not hold. */
async function broken(text: string, changed: Partial<Claim> = {}): Promise<string[]> {
  const report = await decisionCheck(text, { ...claim, ...changed });
  expect(report.ok).toBe(report.steps.every((step) => step.ok));
  return report.steps.filter((step) => !step.ok).map((step) => step.title);
}

/** Whether a reader learns that the record is not true: by a step, or since it cannot be read. */
async function isTold(text: string, changed: Partial<Claim> = {}): Promise<boolean> {
  try {
    const report = await decisionCheck(text, { ...claim, ...changed });
    return !report.ok && !report.onlyLimit;
  } catch (error) {
    return error instanceof SyntaxError;
  }
}

describe("the one text of a value", () => {
  it("has its keys sorted, no spaces, and numbers as every browser writes them", () => {
    const value = JSON.parse('{ "b": [1.0, 8e-08, -0.5, 1e+21], "a": {"\u00e9": null} }') as Value;
    expect(canonical(value)).toBe('{"a":{"\u00e9":null},"b":[1,8e-8,-0.5,1e+21]}');
    const keys = JSON.parse('{"\ufb33":1,"\ud83d\ude00":2,"z":3}') as Value;
    expect(canonical(keys)).toBe('{"z":3,"\ud83d\ude00":2,"\ufb33":1}');
  });

  it("is none of half a sign", () => {
    expect(() => canonical("\ud800")).toThrow(SyntaxError);
  });
});

describe("the check of a decision", () => {
  it("finds everything in order in a true record", async () => {
    const report = await decisionCheck(record, claim);
    expect(report.steps.map((step) => [step.ok, step.title])).toEqual([
      [true, "Your limit went in as you gave it"],
      [true, "The record holds the answer that you got"],
      [true, "You were asked less than your limit"],
      [true, "The entry is unchanged"],
      [true, "It builds on the entry before"],
      [true, "What came later builds on it"],
      [true, "The rest was sent to you alone"],
      [true, "Your receipt came before the decision"],
      [true, "No price was set after your receipt"],
      [true, "The market signed your receipt"],
    ]);
    expect(report.ok).toBe(true);
  });

  it("reads the same record however its JSON is written", async () => {
    const numbers = record.replace('"payment": 1,', '"payment": 1.0,').replace("8e-9", "0.8e-08");
    expect(numbers).not.toBe(record);
    expect(await broken(numbers)).toEqual([]);
  });

  it("tells a limit that does not fit from a record that does not hold", async () => {
    const mistyped = { limitMicros: 60_000_000 };
    expect(await broken(record, mistyped)).toEqual(["The record holds another limit"]);
    expect((await decisionCheck(record, { ...claim, ...mistyped })).onlyLimit).toBe(true);
    const forged = { ...mistyped, paymentMicros: 2 };
    expect(await broken(record, forged)).toEqual([
      "The record holds another limit",
      "The record says something else",
    ]);
    expect((await decisionCheck(record, { ...claim, ...forged })).onlyLimit).toBe(false);
    expect((await decisionCheck(record, claim)).onlyLimit).toBe(false);
  });

  it("judges the decision only by a limit that the record was made with", async () => {
    const report = await decisionCheck(record, { ...claim, limitMicros: 1 });
    expect(report.steps.map((step) => step.title)).not.toContain("The price is not below your limit");
  });

  it("sees a receipt with another price, another outcome or another bid", async () => {
    for (const changed of [{ paymentMicros: 2 }, { admitted: false }])
      expect(await broken(record, changed)).toEqual(["The record says something else"]);
    expect(await broken(record, { bidId: "bid_before" })).toEqual([
      "The record says something else",
      "The receipt is not this bid's",
      "Prices may have changed after your receipt",
    ]);
  });

  it("sees a price that is not below the limit", async () => {
    const dear = altered((proof) => (proof.entries[3].outcome.payment = 60_000_001));
    expect(await broken(dear, { paymentMicros: 60_000_001 })).toEqual([
      "The price is not below your limit",
      "The record was changed",
      "What came later does not build on it",
      "Prices may have changed after your receipt",
    ]);
  });

  it("sees a single changed figure, in the own entry and in its neighbours", async () => {
    const own = altered((proof) => (proof.entries[3].event.task.arrival_slot = 1));
    expect(await broken(own)).toEqual([
      "The record was changed",
      "What came later does not build on it",
      "The receipt is not this bid's",
      "Prices may have changed after your receipt",
    ]);
    const before = altered((proof) => (proof.entries[2].outcome.parts[1] = 9e-9));
    expect(await broken(before)).toEqual([
      "It does not build on the entry before",
      "Prices may have changed after your receipt",
    ]);
    const after = altered((proof) => (proof.entries[6].event.task.arrival_slot = 2));
    expect(await broken(after)).toEqual(["What came later does not build on it"]);
  });

  it("sees whichever figure of the record is forged", async () => {
    const forged = [...forgeries(JSON.parse(record) as Value)];
    expect(forged.length).toBe(149);
    for (const { at, forged: value } of forged)
      expect([at, await isTold(JSON.stringify(value))]).toEqual([at, true]);
  }, PATIENCE_MS);

  it("sees an entry that is sent twice, or has a part that no hash covers", async () => {
    const twice = altered((proof) => proof.entries.splice(1, 0, proof.entries[1]));
    expect(await broken(twice)).toContain("It does not build on the entry before");
    const more = altered((proof) => (proof.entries[2].note = "free of charge"));
    expect(await broken(more)).toContain("It does not build on the entry before");
    const own = altered((proof) => (proof.entries[3].note = "free of charge"));
    expect(await broken(own)).toContain("The record was changed");
  });

  it("does not take a mistyped limit for the reason where the opening opens nothing", async () => {
    const text = altered((proof) => (proof.opening.bid = 60_000_000));
    const report = await decisionCheck(text, { ...claim, limitMicros: 60_000_000 });
    expect(report.ok || report.onlyLimit).toBe(false);
  });

  it("sees a hash that is not the receipt's", async () => {
    expect(await broken(record, { hash: "0".repeat(64) })).toEqual(["The record was changed"]);
  });

  it("sees entries that were left out", async () => {
    const cut = (from: number, count: number) =>
      altered((proof) => proof.entries.splice(from, count));
    expect(await broken(cut(0, 0))).toEqual([]);
    // Before the receipt nothing is needed.
    expect(await broken(cut(0, 1))).toEqual([]);
    expect(await broken(cut(2, 1))).toEqual([
      "It does not build on the entry before",
      "Prices may have changed after your receipt",
    ]);
    expect(await broken(cut(3, 1))).toEqual(["The record holds your bid"]);
    expect(await broken(cut(4, 1))).toEqual(["What came later does not build on it"]);
    expect(await broken(cut(4, 9))).toEqual([]);
  });

  it("sees another answer than the one the record commits to", async () => {
    const text = altered((proof) => (proof.opening.private.winning_deadline_slot = 3));
    expect(await broken(text)).toEqual(["The record holds another answer to you"]);
  });

  it("sees a receipt that is another bid's, or was signed for something else", async () => {
    const other = altered((proof) => (proof.receipt.sealed = "0".repeat(64)));
    expect(await broken(other)).toEqual([
      "The receipt is not this bid's",
      "Prices may have changed after your receipt",
      "The signature is not the market's",
    ]);
    const later = altered((proof) => (proof.receipt.signed_at = "2026-01-01T00:00:01+00:00"));
    expect(await broken(later)).toEqual(["The signature is not the market's"]);
  });

  it("sees prices that were set between the receipt and the decision", async () => {
    const between = altered((proof) => (proof.entries[2].event.type = "PricesSolved"));
    expect(await broken(between)).toContain("Prices may have changed after your receipt");
  });

  it("is not taken in by a list in place of what it holds", async () => {
    const text = altered((proof) => (proof.entries[3].outcome.payment = [1]));
    await expect(decisionCheck(text, claim)).rejects.toThrow(SyntaxError);
  });
});
