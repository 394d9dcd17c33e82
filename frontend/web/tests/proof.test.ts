import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { amountText, decisionCheck, type Claim } from "../src/proof/check";
import { canonical, parse, without, type Value } from "../src/proof/lossless";

const record = readFileSync(new URL("./proof.json", import.meta.url), "utf8");
const entries = (JSON.parse(record) as { entries: { hash: string }[] }).entries;
/** For a hundred and more proofs on a busy machine. */
const PATIENCE_MS = 60_000;
const claim: Claim = {
  zone: "demo",
  bidId: "bid_own",
  position: 4,
  hash: entries[1]!.hash,
  admitted: true,
  paymentMicros: 1,
  limitMicros: 60_000_001,
};

/** The record with one figure, word or hash forged, for every one that it has. */
function* forgeries(value: Value): Generator<{ at: string; text: string }> {
  if (value.kind === "scalar") {
    yield { at: "", text: forge(value.text) };
  } else if (value.kind === "array") {
    for (const [index, item] of value.items.entries()) {
      for (const { at, text } of forgeries(item)) {
        const texts = value.items.map(canonical).with(index, text);
        yield { at: `.${index}${at}`, text: `[${texts.join(",")}]` };
      }
    }
  } else {
    for (const [name, { key, value: part }] of value.members) {
      for (const { at, text } of forgeries(part)) {
        const rest = canonical(without(value, name)).slice(1);
        yield { at: `.${name}${at}`, text: `{${key}:${text}${rest === "}" ? "" : ","}${rest}` };
      }
    }
  }
}

function forge(scalar: string): string {
  if (scalar.startsWith('"')) return `${scalar.slice(0, -1)}9"`;
  if (/^(true|false|null)$/.test(scalar)) return scalar === "true" ? "false" : "true";
  return scalar.startsWith("-") ? scalar.slice(1) : `9${scalar}`;
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

describe("a record as the house keeps it", () => {
  it("is written back as it was read, keys sorted and numbers untouched", () => {
    expect(canonical(parse('{ "b": [1.0, 8e-08, -0.5], "a": {"é\\u00e9": null} }'))).toBe(
      '{"a":{"é\\u00e9":null},"b":[1.0,8e-08,-0.5]}',
    );
    expect(canonical(parse('{"\\ud83d\\ude00":1,"\\uffff":2,"z":3}'))).toBe(
      '{"z":3,"\\uffff":2,"\\ud83d\\ude00":1}',
    );
  });

  it("is refused when it is not JSON, or says a thing twice", () => {
    for (const text of ["", "{", "[1,]", "{'a':1}", "01", '{"a":1}x', '{"a":1,"\\u0061":2}']) {
      expect(() => parse(text)).toThrow(SyntaxError);
    }
  });

  it("has amounts in the log's own writing", () => {
    expect([0, 14_625, 1e15].map(amountText)).toEqual(["0.0", "14625.0", "1000000000000000.0"]);
    expect(() => amountText(0.5)).toThrow(RangeError);
  });
});

describe("the check of a decision", () => {
  it("finds everything in order in a true record", async () => {
    const report = await decisionCheck(record, claim);
    expect(report.steps.map((step) => [step.ok, step.title])).toEqual([
      [true, "Your limit went in as you gave it"],
      [true, "The record holds the answer that you got"],
      [true, "You were asked less than your limit"],
      [true, "Not a letter of it was changed"],
      [true, "It builds on the entry before"],
      [true, "What came later builds on it"],
    ]);
    expect(report.ok).toBe(true);
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
    for (const changed of [{ paymentMicros: 2 }, { admitted: false }, { bidId: "bid_before" }]) {
      expect(await broken(record, changed)).toEqual(["The record says something else"]);
    }
  });

  it("sees a price that is not below the limit", async () => {
    const dear = record.replace(
      /("task_id": "bid_own", "admitted": true, "payment": )1\.0/,
      (_, head: string) => `${head}60000001.0`,
    );
    expect(await broken(dear, { paymentMicros: 60_000_001 })).toEqual([
      "The price is not below your limit",
      "The record was changed",
      "What came later does not build on it",
    ]);
  });

  it("sees a single changed figure, in the own entry and in its neighbours", async () => {
    const slot = (id: string, at: number) => `"${id}", "arrival_slot": ${at}`;
    const own = record.replace(slot("bid_own", 0), slot("bid_own", 1));
    expect(await broken(own)).toEqual([
      "The record was changed",
      "What came later does not build on it",
    ]);
    const before = record.replace("8e-08", "9e-08");
    expect(await broken(before)).toEqual(["It does not build on the entry before"]);
    const after = record.replace(slot("bid_after", 0), slot("bid_after", 1));
    expect(await broken(after)).toEqual(["What came later does not build on it"]);
  });

  it("sees whichever figure of the record is forged", async () => {
    const forged = [...forgeries(parse(record))];
    expect(forged.length).toBe(116);
    for (const { at, text } of forged) expect([at, await isTold(text)]).toEqual([at, true]);
  }, PATIENCE_MS);

  it("sees an entry that is sent twice, or has a part that no hash covers", async () => {
    const entry = record.slice(record.indexOf('{"position": 3'), record.indexOf(', {"position": 4'));
    const twice = record.replace(entry, `${entry}, ${entry}`);
    expect(await broken(twice)).toEqual(["It does not build on the entry before"]);
    const more = record.replace('{"position": 3', '{"note": "free of charge", "position": 3');
    expect(await broken(more)).toEqual(["It does not build on the entry before"]);
    const own = record.replace('{"position": 4', '{"note": "free of charge", "position": 4');
    expect(await broken(own)).toEqual(["The record was changed"]);
  });

  it("does not take a mistyped limit for the reason where the opening opens nothing", async () => {
    const text = record.replace('"bid": 60000001.0', '"bid": 60000000.0');
    const report = await decisionCheck(text, { ...claim, limitMicros: 60_000_000 });
    expect(report.ok || report.onlyLimit).toBe(false);
  });

  it("sees a hash that is not the receipt's", async () => {
    expect(await broken(record, { hash: "0".repeat(64) })).toEqual(["The record was changed"]);
  });

  it("sees entries that were left out", async () => {
    const cut = (from: number, count: number) => {
      const whole = JSON.parse(record) as { entries: unknown[] };
      const kept = whole.entries.map((_, i) => i).filter((i) => i < from || i >= from + count);
      const list = parse(record);
      if (list.kind !== "object") throw new Error("not an object");
      const items = list.members.get("entries")!.value;
      if (items.kind !== "array") throw new Error("not a list");
      const texts = kept.map((i) => canonical(items.items[i]!));
      const head = canonical(without(list, "entries")).slice(0, -1);
      return `${head},"entries":[${texts.join(",")}]}`;
    };
    expect(await broken(cut(0, 0))).toEqual([]);
    expect(await broken(cut(0, 1))).toEqual(["The entry before it is missing"]);
    expect(await broken(cut(1, 1))).toEqual(["The record holds your bid"]);
    expect(await broken(cut(2, 1))).toEqual(["What came later does not build on it"]);
    expect(await broken(cut(2, 9))).toEqual([]);
  });
});

describe("the check of a decision with a receipt", () => {
  const received = readFileSync(new URL("./received.json", import.meta.url), "utf8");
  const list = (JSON.parse(received) as { entries: { hash: string; position: number }[] }).entries;
  const told: Partial<Claim> = { hash: list.find((entry) => entry.position === 4)!.hash };

  it("finds the receipt before the decision, signed, and nothing in between", async () => {
    const report = await decisionCheck(received, { ...claim, ...told });
    expect(report.steps.slice(-4).map((step) => [step.ok, step.title])).toEqual([
      [true, "The rest was sent to you alone"],
      [true, "Your receipt came before the decision"],
      [true, "No price was set after your receipt"],
      [true, "The market signed your receipt"],
    ]);
    expect(report.ok).toBe(true);
  });

  it("sees another answer than the one the record commits to", async () => {
    const text = received.replace('"winning_deadline_slot": null}', '"winning_deadline_slot": 3}');
    expect(text).not.toBe(received);
    expect(await broken(text, told)).toEqual(["The record holds another answer to you"]);
  });

  it("sees a receipt that is another bid's, or was signed for something else", async () => {
    const sealed = /"sealed": "[0-9a-f]/;
    const other = received.replace(sealed, (found) => `${found.slice(0, -1)}g`);
    expect(await broken(other, told)).toEqual([
      "The receipt is not this bid's",
      "Prices may have changed after your receipt",
      "The signature is not the market's",
    ]);
    const later = received.replace("2026-01-01T00:00:00", "2026-01-01T00:00:01");
    expect(await broken(later, told)).toEqual(["The signature is not the market's"]);
  });

  it("sees whichever figure is forged, of the receipt, the opening or an entry", async () => {
    const forged = [...forgeries(parse(received))];
    expect(forged.length).toBe(152);
    for (const { at, text } of forged) expect([at, await isTold(text, told)]).toEqual([at, true]);
  }, PATIENCE_MS);

  it("sees prices that were set between the receipt and the decision", async () => {
    const between = received.replace('"type": "BidArrived"', '"type": "PricesSolved"');
    expect(await broken(between, told)).toContain("Prices may have changed after your receipt");
  });
});
