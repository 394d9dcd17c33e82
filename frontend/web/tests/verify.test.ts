import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { claimOf, decisionCheck, sha256, type Step } from "../src/proof/check";
import { canonical, member, type Value } from "../src/proof/record";
import { linesOf, readGiven } from "../src/verify/files";
import { signaturesCheck, transcriptCheck } from "../src/verify/transcript";

const record = readFileSync(new URL("./proof.json", import.meta.url), "utf8");
const proof = JSON.parse(record) as Value & { entries: Record<string, Value>[] };
const receipt = member(proof, "receipt");
const { entries } = proof;
/** The rules are not in the record: a snapshot before its first entry stands for them. */
const header = {
  zone: "demo",
  bids_left_out: true,
  snapshot: { position: 0, head_hash: entries[0]!["prev_hash"]! },
};

function log(changed: readonly unknown[] = entries, top: unknown = header): Blob {
  return new Blob([[top, ...changed].map((line) => JSON.stringify(line)).join("\n"), "\n"]);
}

async function check(file: Blob, signed: readonly Value[] = []): Promise<Step[]> {
  const given = await readGiven(file);
  if (given.kind !== "transcript") throw new Error(given.kind);
  return transcriptCheck(given.header, given.lines(), signed);
}

describe("a file", () => {
  it("is known by what stands in it", async () => {
    expect((await readGiven(log())).kind).toBe("transcript");
    expect((await readGiven(new Blob([record]))).kind).toBe("proof");
    expect((await readGiven(new Blob([JSON.stringify(receipt, null, 1)]))).kind).toBe("receipt");
    for (const other of ["", "{}", "[1]", "null", "hello"])
      await expect(readGiven(new Blob([other]))).rejects.toThrow(SyntaxError);
  });

  it("is read line by line, wherever its bytes are cut", async () => {
    const lines: string[] = [];
    for await (const line of linesOf(new Blob(["a\n\nbö", "ö\nc"]))) lines.push(line);
    expect(lines).toEqual(["a", "böö", "c"]);
  });
});

describe("a record without a page", () => {
  it("claims of itself what the check holds it to", async () => {
    const report = await decisionCheck(record, claimOf(proof));
    expect(report.ok).toBe(true);
    expect(claimOf(proof)).toMatchObject({ zone: "demo", bidId: "bid_own", position: 4 });
  });
});

describe("a transcript", () => {
  it("holds with the receipt that was given for one of its entries", async () => {
    const steps = await check(log(), [receipt]);
    expect(steps.map((step) => step.ok)).toEqual([true, true, true]);
    expect(steps[0]!.detail).toContain(`${entries.length} entries of demo`);
  });

  it("does not hold with an entry changed, left out, moved or sent twice", async () => {
    for (let at = 0; at < entries.length; at++) {
      const changed = { ...entries[at]!, outcome: { type: "Changed", dropped: ["x"] } };
      const cut = at === entries.length - 1 ? [] : [entries.toSpliced(at, 1)];
      for (const other of [entries.with(at, changed), entries.toSpliced(at, 0, entries[at]!), ...cut]) {
        const [chain] = await check(log(other));
        expect(chain!.ok).toBe(false);
      }
    }
  });

  it("does not hold with a part that no hash covers, or another beginning", async () => {
    const more = entries.with(1, { ...entries[1]!, note: "x" });
    expect((await check(log(more)))[0]!.ok).toBe(false);
    const other = { ...header, snapshot: { position: 0, head_hash: "0".repeat(64) } };
    expect((await check(log(entries, other)))[0]!.ok).toBe(false);
  });

  it("is contradicted by a receipt of an entry that it does not have", async () => {
    const [, found] = await check(log(entries.slice(0, 1)), [receipt]);
    expect(found).toMatchObject({ ok: false, detail: "It has no entry 2." });
    const forged = { ...(receipt as object), sealed: "0".repeat(64) } as Value;
    const steps = await check(log(), [forged]);
    expect(steps.map((step) => step.ok)).toEqual([true, false, false]);
  });

  it("says when a receipt is of another log, and shows no bid's amount", async () => {
    const steps = await check(log(), [{ ...(receipt as object), zone: "other" } as Value]);
    expect(steps.at(-1)).toMatchObject({ ok: false, title: "A receipt or head is of another log" });
    const shown = { ...header, bids_left_out: false };
    await expect(check(log(entries, shown))).rejects.toThrow("finetender-verify");
  });

  it("begins at its rules where it has no snapshot", async () => {
    const rules = { version: 2 };
    const hash = await sha256(canonical(rules));
    const first = { ...entries[0]!, prev_hash: hash };
    const { hash: _, ...hashed } = first as Record<string, Value>;
    const whole = { ...first, hash: await sha256(canonical(hashed)) };
    const top = { zone: "demo", bids_left_out: true, rules };
    expect((await check(log([whole], top)))[0]!.ok).toBe(true);
    expect((await check(log(entries, top)))[0]!.ok).toBe(false);
  });
});

describe("a receipt alone", () => {
  it("is checked by its signature", async () => {
    expect((await signaturesCheck([receipt]))[0]!.ok).toBe(true);
    const forged = { ...(receipt as object), position: 3 } as Value;
    expect((await signaturesCheck([forged]))[0]!.ok).toBe(false);
  });
});
