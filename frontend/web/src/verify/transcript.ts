/**
 * Checks a published log in the browser: that it is one chain of hashes from its first line on, and
 * that it has what receipts and signed heads say. Decisions and prices are not made again here.
 */
import {
  entryHash,
  follow,
  isWhole,
  lists,
  positionOf,
  sha256,
  shortHash,
  signatureHolds,
  type Step,
} from "../proof/check";
import { canonical, find, member, number, type Value } from "../proof/record";
import { count } from "../shared/format";
import { HEAD, RECEIPT } from "./files";

/** Entries between two words on how far it is. */
const TELL_EVERY = 500;

interface Chain {
  entries: number;
  decided: number;
  hash: string;
  /** What is wrong with the first entry that does not hold. */
  problem: string | null;
  /** Signed things by position, with the entry that the log has there. */
  found: Map<number, Value>;
}

/** Check a log, and what was signed of it; `tell` is given the number of entries read. */
export async function transcriptCheck(
  header: Value,
  lines: AsyncIterable<string>,
  signed: readonly Value[],
  tell: (entries: number) => void = () => undefined,
): Promise<Step[]> {
  if (find(header, "bids_left_out") !== true)
    throw new SyntaxError("it shows bids: check it with finetender-verify");
  const zone = String(find(header, "zone") ?? "");
  const own = signed.filter((each) => find(each, "zone") === zone);
  const wanted = new Set(own.map((each) => number(member(each, "position"))));
  const chain = await readChain(header, lines, wanted, tell);
  const steps = [
    {
      ok: chain.problem === null,
      title: chain.problem === null ? "The log is one unbroken chain" : "The log does not hold",
      detail:
        chain.problem ??
        `${count(chain.entries)} entries of ${zone} name each other in turn, up to ${shortHash(chain.hash)}; ${count(chain.decided)} decide bids.`,
    },
  ];
  for (const each of own) steps.push(...(await signedSteps(each, chain)));
  const others = signed.length - own.length;
  if (others)
    steps.push({
      ok: false,
      title: "A receipt or head is of another log",
      detail: `${count(others)} of what you gave is not of ${zone}.`,
    });
  return steps;
}

async function readChain(
  header: Value,
  lines: AsyncIterable<string>,
  wanted: ReadonlySet<number>,
  tell: (entries: number) => void,
): Promise<Chain> {
  const begin = await beginOf(header);
  const chain: Chain = { entries: 0, decided: 0, hash: begin.hash, problem: null, found: new Map() };
  let before: Value = { position: begin.position };
  let read = 0;
  for await (const line of lines) {
    read += 1;
    if (read === 1) continue;
    const entry = JSON.parse(line) as Value;
    const hash = await entryHash(entry);
    if (!follow(before, chain.hash, entry)) {
      chain.problem = `Line ${count(read)} does not build on the one before it.`;
      break;
    }
    if (!isWhole(entry) || member(entry, "hash") !== hash) {
      chain.problem = `Line ${count(read)} was changed: its hash is ${shortHash(hash)}.`;
      break;
    }
    chain.entries += 1;
    chain.hash = hash;
    if (member(entry, "event", "type") === "BidArrived") chain.decided += 1;
    if (wanted.has(positionOf(entry))) chain.found.set(positionOf(entry), entry);
    before = entry;
    if (chain.entries % TELL_EVERY === 0) tell(chain.entries);
  }
  return chain;
}

/** Where a log begins: at its rules, or at a snapshot, which is taken as it stands. */
async function beginOf(header: Value): Promise<{ position: number; hash: string }> {
  const snapshot = find(header, "snapshot");
  if (snapshot !== undefined && snapshot !== null)
    return {
      position: number(member(snapshot, "position")),
      hash: String(member(snapshot, "head_hash")),
    };
  return { position: 0, hash: await sha256(canonical(member(header, "rules"))) };
}

async function signedSteps(signed: Value, chain: Chain): Promise<Step[]> {
  const position = number(member(signed, "position"));
  const entry = chain.found.get(position);
  const isReceipt = member(signed, "format") === RECEIPT;
  const what = isReceipt ? "receipt" : "signed head";
  const same =
    entry !== undefined &&
    member(entry, "hash") === member(signed, "hash") &&
    (!isReceipt || lists(entry, String(member(signed, "bid_id")), String(member(signed, "sealed"))));
  const step = {
    ok: same,
    title: same ? `The log has the entry of the ${what}` : `The log contradicts the ${what}`,
    detail:
      entry === undefined
        ? `It has no entry ${count(position)}.`
        : `Entry ${count(position)} is ${shortHash(String(member(entry, "hash")))}; the ${what} has ${shortHash(String(member(signed, "hash")))}.`,
  };
  return [step, await signatureHolds(signed)];
}

/** Check a receipt or signed heads by themselves. */
export async function signaturesCheck(signed: readonly Value[]): Promise<Step[]> {
  const steps = [];
  for (const each of signed) {
    const format = find(each, "format");
    if (format !== RECEIPT && format !== HEAD) throw new SyntaxError("it is no signed head");
    steps.push(await signatureHolds(each));
  }
  return steps;
}
