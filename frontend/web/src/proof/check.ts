/**
 * Checks a decision against the published log, with nothing but SHA-256
 * (`scheduler/public_log/entries.py` says what is hashed). What the receipt claims is
 * given by the reader; every hash is computed here from the record's own text.
 */
import { count, usdExact } from "../shared/format";
import { canonical, find, isObject, items, member, number, without, type Value } from "./record";

const FORMAT = "finetender-proof-3";
const ENTRY_PARTS = ["event", "outcome", "position", "prev_hash"];

/** What the market answered, and what the person remembers of their own bid. */
export interface Claim {
  zone: string;
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

/** The hash of an entry from its published parts. */
export async function entryHash(entry: Value): Promise<string> {
  const parts = ENTRY_PARTS.map((name) => [name, member(entry, name)] as const);
  return sha256(canonical(Object.fromEntries(parts)));
}

export function shortHash(hash: string): string {
  return hash.length <= 16 ? hash : `${hash.slice(0, 8)}…${hash.slice(-5)}`;
}

/**
 * Every step, also after one that failed: a reader should see all that does not hold.
 * Each figure of the record is bound by one of them, so that none stands there for show.
 */
export async function decisionCheck(text: string, claim: Claim): Promise<Report> {
  const proof = JSON.parse(text) as Value;
  const entries = items(member(proof, "entries"));
  const own = entries.find((entry) => positionOf(entry) === claim.position);
  if (!own) {
    const detail = `Entry ${count(claim.position)} is not in the record that was sent.`;
    return { ok: false, onlyLimit: false, steps: [{ ok: false, title: "The record holds your bid", detail }] };
  }
  const earlier = entries.slice(0, entries.indexOf(own));
  const later = entries.slice(entries.indexOf(own) + 1);
  const opening = await openingOf(proof, own, claim);
  const limit = limitStep(opening, claim);
  const record = [
    saysTheSame(proof, own, claim),
    await hashHolds(own, claim),
    await buildsOn(own, earlier),
    await builtUpon(own, later),
    ...(await receiptSteps(proof, own, entries, claim)),
  ];
  const recordHolds = record.every((step) => step.ok) && opening.opens;
  if (!limit.ok) return { ok: false, onlyLimit: recordHolds, steps: [limit, ...record] };
  // The decision can be judged only by the limit that it was made for.
  const decision = follows(own, earlier, claim);
  const [said, ...chain] = record;
  const steps = [limit, said!, decision, ...chain];
  return { ok: recordHolds && decision.ok, onlyLimit: false, steps };
}

/** What was committed to: by the reader's limit, by the record's own opening, and as published. */
interface Opening {
  computed: string;
  published: string;
  /** The record's opening gives what was published, so that at most the limit is mistyped. */
  opens: boolean;
}

async function openingOf(proof: Value, own: Value, claim: Claim): Promise<Opening> {
  const salt = String(member(proof, "opening", "salt"));
  const published = String(member(own, "event", "task", "bid_commitment"));
  const opened = await sha256(`${salt}|${canonical(member(proof, "opening", "bid"))}`);
  const computed = await sha256(`${salt}|${canonical(claim.limitMicros)}`);
  return { computed, published, opens: opened === published };
}

function limitStep({ computed, published, opens }: Opening, claim: Claim): Step {
  const gives = `${usdExact(claim.limitMicros)} and your salt give ${shortHash(computed)}`;
  const fits = computed === published;
  const ok = fits && opens;
  const other = fits
    ? "the opening that was sent gives another fingerprint"
    : `the record has ${shortHash(published)}`;
  return {
    ok,
    title: ok ? "Your limit went in as you gave it" : "The record holds another limit",
    detail: ok
      ? `${gives}, the public commitment.`
      : `${gives}; ${other}.`,
  };
}

function saysTheSame(proof: Value, own: Value, claim: Claim): Step {
  const outcome = member(own, "outcome");
  const admitted = member(outcome, "admitted") === true;
  const payment = number(member(outcome, "payment"));
  const same =
    member(proof, "format") === FORMAT &&
    member(proof, "bid_id") === claim.bidId &&
    member(proof, "position") === claim.position &&
    member(proof, "zone") === claim.zone &&
    member(outcome, "task_id") === claim.bidId &&
    member(own, "event", "task", "id") === claim.bidId &&
    admitted === claim.admitted &&
    (!admitted || payment === claim.paymentMicros);
  const said = admitted ? `admitted at ${usdExact(payment)}` : "refused";
  return {
    ok: same,
    title: same ? "The record holds the answer that you got" : "The record says something else",
    detail: `Entry ${count(claim.position)}: ${String(member(outcome, "task_id"))}, ${said}.`,
  };
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
  const salt = String(member(proof, "opening", "salt"));
  const computed = await sha256(`${salt}|${canonical(member(proof, "opening", "private"))}`);
  const ok = computed === member(own, "outcome", "private_commitment");
  return {
    ok,
    title: ok ? "The rest was sent to you alone" : "The record holds another answer to you",
    detail: `What was sent to you alone, such as a later deadline, gives ${shortHash(computed)} with your salt.`,
  };
}

/** The receipt names the bid by the hash of what is decided. */
async function receiptHolds(proof: Value, own: Value, claim: Claim): Promise<Step> {
  const receipt = member(proof, "receipt");
  const position = number(member(receipt, "position"));
  const computed = await sha256(canonical(member(own, "event")));
  const ok =
    position < claim.position &&
    member(receipt, "zone") === claim.zone &&
    member(receipt, "bid_id") === claim.bidId &&
    member(receipt, "sealed") === computed;
  return {
    ok,
    title: ok ? "Your receipt came before the decision" : "The receipt is not this bid's",
    detail: ok
      ? `Entry ${count(position)} received your bid, sealed as ${shortHash(computed)}; entry ${count(claim.position)} decided it.`
      : `The bid that was decided is ${shortHash(computed)}; the receipt has ${shortHash(String(member(receipt, "sealed")))}.`,
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
  const first = number(member(receipt, "position"));
  const between = entries.filter(
    (entry) => positionOf(entry) >= first && positionOf(entry) < claim.position,
  );
  const received = between[0];
  const quiet = between.every((entry) => QUIET.has(String(member(entry, "event", "type"))));
  const linked =
    received !== undefined &&
    between.length === claim.position - first &&
    (await entryHash(received)) === member(receipt, "hash") &&
    lists(received, claim.bidId, String(member(receipt, "sealed"))) &&
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

const QUIET = new Set([
  "BidsReceived",
  "ReceiptsVoided",
  "BidArrived",
  "BidPriced",
  "BundleArrived",
  "LogRestored",
]);

/** Whether an entry names a bid among those that it received. */
export function lists(received: Value, bidId: string, sealed: string): boolean {
  const bids = items(find(received, "event", "bids"));
  return bids.some((bid) => items(bid)[0] === bidId && items(bid)[1] === sealed);
}

/** Whether the key that a receipt or a signed head names has signed it. */
export async function signatureHolds(receipt: Value): Promise<Step> {
  const key = String(member(receipt, "public_key"));
  const body = canonical(without(receipt, "signature"));
  const valid = await isSigned(body, key, String(member(receipt, "signature")));
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
  const pairs = /^(?:[0-9a-f]{2})*$/.test(hex) ? (hex.match(/../g) ?? []) : [];
  return Uint8Array.from(pairs, (pair) => parseInt(pair, 16));
}

/** A bid wins above the price and loses at it or below; of a bundle that is so of the sums. */
function follows(own: Value, earlier: readonly Value[], claim: Claim): Step {
  const outcome = member(own, "outcome");
  const bundle = find(own, "event", "bundle");
  if (bundle !== undefined) return followsBundle(own, earlier, String(bundle));
  const limit = usdExact(claim.limitMicros);
  if (member(outcome, "admitted") === true) {
    const payment = number(member(outcome, "payment"));
    const ok = claim.limitMicros > payment;
    return {
      ok,
      title: ok ? "You were asked less than your limit" : "The price is not below your limit",
      detail: `The price is ${usdExact(payment)}, your limit ${limit}.`,
    };
  }
  const reason = member(outcome, "refusal");
  const price = member(outcome, "winning_price");
  if (reason !== "price" || price === null) {
    return {
      ok: reason !== "price",
      title: "The refusal was not about your limit",
      detail: `The reason on record is ${String(reason)}.`,
    };
  }
  const ok = claim.limitMicros <= number(price);
  return {
    ok,
    title: ok ? "Your limit was not above the price" : "Your limit was above the price",
    detail: `The price was ${usdExact(number(price))}, your limit ${limit}.`,
  };
}

/** The entry of the bundle says whether all of its bids win, and is among those before. */
function followsBundle(own: Value, earlier: readonly Value[], bundleId: string): Step {
  const whole = earlier.find(
    (entry) =>
      member(entry, "event", "type") === "BundleArrived" &&
      member(entry, "event", "bundle_id") === bundleId,
  );
  const admitted = member(own, "outcome", "admitted");
  const ok = whole !== undefined && member(whole, "outcome", "admitted") === admitted;
  return {
    ok,
    title: ok ? "Your bundle was decided as one" : "The record of your bundle says something else",
    detail: ok
      ? `Entry ${count(positionOf(whole))} decided all bids of ${bundleId}: their limits together against their prices together.`
      : `No entry before yours decided ${bundleId} so.`,
  };
}

async function hashHolds(own: Value, claim: Claim): Promise<Step> {
  const computed = await entryHash(own);
  const ok = isWhole(own) && computed === claim.hash && computed === member(own, "hash");
  return {
    ok,
    title: ok ? "The entry is unchanged" : "The record was changed",
    detail: ok
      ? `SHA-256 of entry ${count(claim.position)} is ${shortHash(computed)}, the hash on your receipt.`
      : `SHA-256 of entry ${count(claim.position)} is ${shortHash(computed)}; your receipt has ${shortHash(claim.hash)}.`,
  };
}

/** All that stands before the own entry leads to it, and nothing stands there twice. */
async function buildsOn(own: Value, earlier: readonly Value[]): Promise<Step> {
  const named = String(member(own, "prev_hash"));
  const before = earlier.at(-1);
  if (!before) {
    const first = member(own, "position") === 1;
    return {
      ok: first,
      title: first ? "It opens the record" : "The entry before it is missing",
      detail: first
        ? `It names ${shortHash(named)}, the zone's rules.`
        : "It was not sent.",
    };
  }
  const computed = await entryHash(before);
  const position = count(positionOf(before));
  const ok = follow(before, computed, own) && (await firstBreak(earlier)) === null;
  return {
    ok,
    title: ok ? "It builds on the entry before" : "It does not build on the entry before",
    detail: ok
      ? `SHA-256 of entry ${position} is ${shortHash(computed)}, which yours names.`
      : `SHA-256 of entry ${position} is ${shortHash(computed)}; yours names ${shortHash(named)}.`,
  };
}

async function builtUpon(own: Value, later: readonly Value[]): Promise<Step> {
  const broken = await firstBreak(later, own);
  if (broken) {
    const detail = `The chain breaks at entry ${count(positionOf(broken))}.`;
    return { ok: false, title: "What came later does not build on it", detail };
  }
  const last = later.at(-1) ?? own;
  const hash = shortHash(await entryHash(last));
  const [from, to] = [positionOf(own) + 1, positionOf(last)].map(count);
  return {
    ok: true,
    title: later.length ? "What came later builds on it" : "Nothing came later yet",
    detail: later.length
      ? `Entries ${from} to ${to} name each other in turn, up to ${hash}.`
      : `Keep ${hash}: every later entry must lead back to it.`,
  };
}

/** What a record claims of itself, for a reader who has nothing but its file. */
export function claimOf(proof: Value): Claim {
  const position = number(member(proof, "position"));
  const own = items(member(proof, "entries")).find((entry) => positionOf(entry) === position);
  if (!own) throw new SyntaxError(`entry ${position} is not among those of the record`);
  const admitted = member(own, "outcome", "admitted") === true;
  return {
    zone: String(member(proof, "zone")),
    bidId: String(member(proof, "bid_id")),
    position,
    hash: String(member(own, "hash")),
    admitted,
    paymentMicros: admitted ? number(member(own, "outcome", "payment")) : null,
    limitMicros: number(member(proof, "opening", "bid")),
  };
}

/** The first entry with another hash than it has, or that does not follow the one before it. */
async function firstBreak(chain: readonly Value[], after?: Value): Promise<Value | null> {
  let before = after;
  let hash = before === undefined ? "" : await entryHash(before);
  for (const entry of chain) {
    const linked = before === undefined || follow(before, hash, entry);
    hash = await entryHash(entry);
    if (!linked || !isWhole(entry) || member(entry, "hash") !== hash) return entry;
    before = entry;
  }
  return null;
}

export function follow(before: Value, hash: string, entry: Value): boolean {
  const next = positionOf(entry) === positionOf(before) + 1;
  return next && member(entry, "prev_hash") === hash;
}

/** An entry has the parts that its hash covers, the hash, and nothing beside them. */
export function isWhole(entry: Value): boolean {
  return isObject(entry) && Object.keys(entry).length === ENTRY_PARTS.length + 1;
}

export function positionOf(entry: Value): number {
  return number(member(entry, "position"));
}
