/**
 * Checks a decision against the published log, with nothing but SHA-256
 * (`scheduler/auction/log/chain.py` says what is hashed). What the receipt claims is
 * given by the reader; every hash is computed here from the record's own text.
 */
import { count, usdExact } from "../shared/format";
import { canonical, find, member, parse, plain, without, type Value } from "./lossless";

const ONE: Value = { kind: "scalar", text: "1" };

/** What the market answered, and what the person remembers of their own bid. */
export interface Claim {
  bidId: string;
  position: number;
  hash: string;
  admitted: boolean;
  /** Micro-dollars. */
  paymentMicros: number | null;
  limitMicros: number;
}

export interface Step {
  ok: boolean;
  title: string;
  detail: string;
}

export interface Report {
  ok: boolean;
  /** Everything holds but the limit, which the reader typed from memory. */
  onlyLimit: boolean;
  steps: Step[];
}

export async function sha256(text: string): Promise<string> {
  const sum = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text));
  return [...new Uint8Array(sum)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** An amount as the log writes it: the shortest decimal that reads back, never without a point. */
export function amountText(micros: number): string {
  if (!Number.isSafeInteger(micros)) throw new RangeError("an amount is a whole number of micros");
  return `${micros}.0`;
}

/** The hash of an entry from its published parts. */
export async function entryHash(entry: Value): Promise<string> {
  const names = ["event", "outcome", "position", "prev_hash"];
  const body = names.map((name) => `"${name}":${canonical(member(entry, name))}`);
  return sha256(`{${body.join(",")}}`);
}

export function shortHash(hash: string): string {
  return hash.length <= 16 ? hash : `${hash.slice(0, 8)}…${hash.slice(-5)}`;
}

/** Every step, also after one that failed: a reader should see all that does not hold. */
export async function decisionCheck(text: string, claim: Claim): Promise<Report> {
  const proof = parse(text);
  const list = member(proof, "entries");
  const entries = list.kind === "array" ? list.items : [];
  const own = entries.find((entry) => plain(member(entry, "position")) === claim.position);
  if (!own) {
    const detail = `Entry ${count(claim.position)} is not among what the house sent.`;
    return { ok: false, onlyLimit: false, steps: [{ ok: false, title: "The record holds your bid", detail }] };
  }
  const before = entries.find((entry) => plain(member(entry, "position")) === claim.position - 1);
  const later = entries.filter(
    (entry) => Number(plain(member(entry, "position"))) > claim.position,
  );
  const limit = await commitmentHolds(proof, own, claim);
  const record = [
    saysTheSame(own, claim),
    await hashHolds(own, claim),
    await buildsOn(own, before),
    await builtUpon(own, later),
    ...(isReceived(own) ? await receiptSteps(proof, own, entries, claim) : []),
  ];
  const recordHolds = record.every((step) => step.ok);
  if (!limit.ok) return { ok: false, onlyLimit: recordHolds, steps: [limit, ...record] };
  // The decision can be judged only by the limit that it was made for.
  const decision = follows(own, claim);
  const [said, ...chain] = record;
  const steps = [limit, said!, decision, ...chain];
  return { ok: recordHolds && decision.ok, onlyLimit: false, steps };
}

async function commitmentHolds(proof: Value, own: Value, claim: Claim): Promise<Step> {
  const salt = String(plain(member(proof, "opening", "salt")));
  const published = plain(member(own, "event", "task", "bid_commitment"));
  const computed = await sha256(`${salt}|${amountText(claim.limitMicros)}`);
  const limit = usdExact(claim.limitMicros);
  const ok = computed === published;
  return {
    ok,
    title: ok ? "Your limit went in as you gave it" : "The record holds another limit",
    detail: ok
      ? `${limit} and your salt give ${shortHash(computed)}, the commitment everybody can read.`
      : `${limit} and your salt give ${shortHash(computed)}; the record has ${shortHash(String(published))}.`,
  };
}

function saysTheSame(own: Value, claim: Claim): Step {
  const outcome = member(own, "outcome");
  const admitted = plain(member(outcome, "admitted")) === true;
  const payment = Number(plain(member(outcome, "payment")));
  const same =
    plain(member(outcome, "task_id")) === claim.bidId &&
    plain(member(own, "event", "task", "id")) === claim.bidId &&
    admitted === claim.admitted &&
    (!admitted || payment === claim.paymentMicros);
  const said = admitted ? `admitted at ${usdExact(payment)}` : "refused";
  return {
    ok: same,
    title: same ? "The record says what you were told" : "The record says something else",
    detail: `Entry ${count(claim.position)}: ${String(plain(member(outcome, "task_id")))}, ${said}.`,
  };
}

/** From version 2 of the record on, bids are received before they are decided. */
function isReceived(own: Value): boolean {
  return Number(plain(find(own, "event", "version") ?? ONE)) > 1;
}

async function receiptSteps(
  proof: Value,
  own: Value,
  entries: readonly Value[],
  claim: Claim,
): Promise<Step[]> {
  return [
    await privateHolds(proof, own),
    await receiptHolds(proof, own, claim),
    await nothingBetween(proof, own, entries, claim),
    await signatureHolds(member(proof, "receipt")),
  ];
}

async function privateHolds(proof: Value, own: Value): Promise<Step> {
  const salt = String(plain(member(proof, "opening", "salt")));
  const computed = await sha256(`${salt}|${canonical(member(proof, "opening", "private"))}`);
  const ok = computed === plain(member(own, "outcome", "private_commitment"));
  return {
    ok,
    title: ok ? "The rest was told to you alone" : "The record holds another answer to you",
    detail: `What only you were told, such as a later deadline, gives ${shortHash(computed)} with your salt.`,
  };
}

/** The receipt names the bid by the hash of what is decided. */
async function receiptHolds(proof: Value, own: Value, claim: Claim): Promise<Step> {
  const receipt = member(proof, "receipt");
  const position = Number(plain(member(receipt, "position")));
  const computed = await sha256(canonical(member(own, "event")));
  const ok =
    position < claim.position &&
    plain(member(receipt, "bid_id")) === claim.bidId &&
    plain(member(receipt, "sealed")) === computed;
  return {
    ok,
    title: ok ? "Your receipt came before the decision" : "The receipt is not this bid's",
    detail: ok
      ? `Entry ${count(position)} received your bid, sealed as ${shortHash(computed)}; entry ${count(claim.position)} decided it.`
      : `The bid that was decided is ${shortHash(computed)}; the receipt has ${shortHash(String(plain(member(receipt, "sealed"))))}.`,
  };
}

/** From the receipt to the decision only other bids were decided, so no price was set. */
async function nothingBetween(
  proof: Value,
  own: Value,
  entries: readonly Value[],
  claim: Claim,
): Promise<Step> {
  const receipt = member(proof, "receipt");
  const first = Number(plain(member(receipt, "position")));
  const between = entries.filter((entry) => {
    const position = Number(plain(member(entry, "position")));
    return position >= first && position < claim.position;
  });
  const received = between[0];
  const quiet = between.every((entry) => QUIET.has(String(plain(member(entry, "event", "type")))));
  const linked =
    received !== undefined &&
    between.length === claim.position - first &&
    (await entryHash(received)) === plain(member(receipt, "hash")) &&
    lists(received, claim.bidId, String(plain(member(receipt, "sealed")))) &&
    (await builtUpon(received, [...between.slice(1), own])).ok;
  const ok = quiet && linked;
  return {
    ok,
    title: ok ? "No price was set after your receipt" : "Prices may have changed after your receipt",
    detail: ok
      ? `From entry ${count(first)} to yours the record has only receipts and decisions.`
      : "The entries from the receipt to the decision are not the ones there should be.",
  };
}

const QUIET = new Set(["BidsReceived", "ReceiptsVoided", "BidArrived"]);

function lists(received: Value, bidId: string, sealed: string): boolean {
  const bids = find(received, "event", "bids");
  if (bids?.kind !== "array") return false;
  return bids.items.some(
    (bid) =>
      bid.kind === "array" && plain(bid.items[0]!) === bidId && plain(bid.items[1]!) === sealed,
  );
}

async function signatureHolds(receipt: Value): Promise<Step> {
  const key = String(plain(member(receipt, "public_key")));
  const body = canonical(without(receipt, "signature"));
  const valid = await isSigned(body, key, String(plain(member(receipt, "signature"))));
  const known = `Compare the key ${shortHash(key)} with the one at /.well-known/finetender-keys.json.`;
  if (valid === null)
    return {
      ok: true,
      title: "The signature was not checked",
      detail: `This browser cannot check Ed25519; any program that can will do. ${known}`,
    };
  return {
    ok: valid,
    title: valid ? "The market signed your receipt" : "The signature is not the market's",
    detail: known,
  };
}

/** Whether a key signed a text; `null` where the browser does not know the algorithm. */
async function isSigned(text: string, key: string, signature: string): Promise<boolean | null> {
  const subtle = crypto.subtle;
  try {
    const made = await subtle.importKey("raw", bytes(key), "Ed25519", false, ["verify"]);
    return await subtle.verify("Ed25519", made, bytes(signature), new TextEncoder().encode(text));
  } catch (error) {
    if (error instanceof DOMException && error.name === "NotSupportedError") return null;
    return false;
  }
}

function bytes(hex: string): Uint8Array<ArrayBuffer> {
  const pairs = hex.match(/[0-9a-f]{2}/g) ?? [];
  return Uint8Array.from(pairs, (pair) => parseInt(pair, 16));
}

/** A bid wins above the price and loses at it or below. */
function follows(own: Value, claim: Claim): Step {
  const outcome = member(own, "outcome");
  const limit = usdExact(claim.limitMicros);
  if (plain(member(outcome, "admitted")) === true) {
    const payment = Number(plain(member(outcome, "payment")));
    const ok = claim.limitMicros > payment;
    return {
      ok,
      title: ok ? "You were asked less than your limit" : "The price is not below your limit",
      detail: `The price is ${usdExact(payment)}, your limit ${limit}.`,
    };
  }
  const reason = plain(member(outcome, "refusal"));
  const price = plain(member(outcome, "winning_price"));
  if (reason !== "price" || price === null) {
    return {
      ok: reason !== "price",
      title: "The refusal was not about your limit",
      detail: `The reason on record is ${String(reason)}.`,
    };
  }
  const ok = claim.limitMicros <= Number(price);
  return {
    ok,
    title: ok ? "Your limit was not above the price" : "Your limit was above the price",
    detail: `The price was ${usdExact(Number(price))}, your limit ${limit}.`,
  };
}

async function hashHolds(own: Value, claim: Claim): Promise<Step> {
  const computed = await entryHash(own);
  const ok = computed === claim.hash && computed === plain(member(own, "hash"));
  return {
    ok,
    title: ok ? "Not a letter of it was changed" : "The record was changed",
    detail: ok
      ? `SHA-256 of entry ${count(claim.position)} is ${shortHash(computed)}, the hash on your receipt.`
      : `SHA-256 of entry ${count(claim.position)} is ${shortHash(computed)}; your receipt has ${shortHash(claim.hash)}.`,
  };
}

async function buildsOn(own: Value, before: Value | undefined): Promise<Step> {
  const named = String(plain(member(own, "prev_hash")));
  if (!before) {
    const first = plain(member(own, "position")) === 1;
    return {
      ok: first,
      title: first ? "It opens the record" : "The entry before it is missing",
      detail: first
        ? `It names ${shortHash(named)}, the zone's rules.`
        : "The house did not send it.",
    };
  }
  const computed = await entryHash(before);
  const position = count(Number(plain(member(before, "position"))));
  const ok = computed === named;
  return {
    ok,
    title: ok ? "It builds on the entry before" : "It does not build on the entry before",
    detail: ok
      ? `SHA-256 of entry ${position} is ${shortHash(computed)}, which yours names.`
      : `SHA-256 of entry ${position} is ${shortHash(computed)}; yours names ${shortHash(named)}.`,
  };
}

async function builtUpon(own: Value, later: readonly Value[]): Promise<Step> {
  let hash = await entryHash(own);
  let expected = Number(plain(member(own, "position"))) + 1;
  for (const entry of later) {
    const position = Number(plain(member(entry, "position")));
    const linked = position === expected && plain(member(entry, "prev_hash")) === hash;
    hash = await entryHash(entry);
    if (!linked || plain(member(entry, "hash")) !== hash) {
      const detail = `The chain breaks at entry ${count(position)}.`;
      return { ok: false, title: "What came later does not build on it", detail };
    }
    expected += 1;
  }
  return {
    ok: true,
    title: later.length ? "What came later builds on it" : "Nothing came later yet",
    detail: later.length
      ? `Entries ${count(expected - later.length)} to ${count(expected - 1)} name each other in turn, up to ${shortHash(hash)}.`
      : `Keep ${shortHash(hash)}: every later entry must lead back to it.`,
  };
}
