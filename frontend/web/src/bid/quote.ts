/** The quote as the server sends it, and the questions the page asks of it. */

export interface Tread {
  /** First deadline at which this price holds, unix seconds. */
  deadline: number;
  price: number;
  finish: number;
}

export interface PriceLine {
  label: string;
  /** Micro-dollars. */
  amount: number;
}

export interface Quote {
  /** Unix seconds. */
  now: number;
  expires: number;
  horizonEnd: number;
  /** Seconds of one slot; the deadline handle moves by whole slots. */
  slot: number;
  /** End of the first slot, so that slot edges can be counted from it. */
  slotEdge: number;
  curve: Tread[];
  /** Parts of the price at the deadline that was asked for. */
  askedDeadline: number | null;
  lines: PriceLine[];
  refusal: string | null;
  message: string;
}

/** The tread in force at a deadline; `null` when no plan is fast enough. */
export function treadAt(curve: readonly Tread[], deadline: number): Tread | null {
  let found: Tread | null = null;
  for (const tread of curve) if (tread.deadline <= deadline) found = tread;
  return found;
}

/** A bid wins when it is above the price, never at it. */
export function wins(tread: Tread | null, limit: number): boolean {
  return tread !== null && limit > tread.price;
}

/** The earliest deadline after `deadline` at which `limit` wins. */
export function earliestWin(
  curve: readonly Tread[],
  limit: number,
  deadline: number,
): Tread | null {
  return curve.find((tread) => tread.deadline > deadline && wins(tread, limit)) ?? null;
}

/** Where slots are short, the earliest deadline is gone before anybody has pressed a button. */
const SPARE_S = 30;

/** The earliest deadline that a handle can be put on. */
export function soonest(quote: Quote): number {
  const first = quote.curve[0]?.deadline ?? quote.slotEdge;
  const slots = quote.slot < 2 * SPARE_S ? Math.ceil(SPARE_S / quote.slot) : 0;
  return Math.min(quote.horizonEnd, first + slots * quote.slot);
}

/** The slot edge nearest to `at`, inside what is on sale. */
export function snapDeadline(quote: Quote, at: number): number {
  const first = soonest(quote);
  const steps = Math.round((at - quote.slotEdge) / quote.slot);
  return Math.min(quote.horizonEnd, Math.max(first, quote.slotEdge + steps * quote.slot));
}

export interface Nudge {
  deadline: number;
  price: number;
  words: string;
}

/** At most three other deadlines worth a look: cheaper treads more than `apart` seconds later. */
export function nudges(
  curve: readonly Tread[],
  deadline: number,
  apart: number,
  words: (later: number, saves: number) => string,
): Nudge[] {
  const here = treadAt(curve, deadline);
  if (!here)
    return curve
      .slice(0, 3)
      .map((t) => ({ deadline: t.deadline, price: t.price, words: "First that can be met" }))
      .slice(0, 1);
  const later = curve.filter(
    (tread) => tread.deadline > deadline + apart && tread.price < here.price,
  );
  const picked =
    later.length <= 3 ? later : [later[0]!, later[Math.floor(later.length / 2)]!, later.at(-1)!];
  return picked.map((tread) => ({
    deadline: tread.deadline,
    price: tread.price,
    words: words(tread.deadline - deadline, here.price - tread.price),
  }));
}
