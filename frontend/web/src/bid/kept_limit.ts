/** The most a job is worth to somebody, kept in this tab and told to nobody. */

const PREFIX = "limit:";

export function rememberLimit(key: string, micros: number): void {
  try {
    sessionStorage.setItem(PREFIX + key, String(micros));
  } catch {
    // Where nothing can be kept, the person answers the price by hand.
  }
}

export function forgetLimit(key: string): void {
  try {
    sessionStorage.removeItem(PREFIX + key);
  } catch {
    // Nothing is kept there.
  }
}

/** Micro-dollars; `null` where none is kept. */
export function recallLimit(key: string): number | null {
  try {
    const kept = Number(sessionStorage.getItem(PREFIX + key) ?? NaN);
    return Number.isSafeInteger(kept) && kept > 0 ? kept : null;
  } catch {
    return null;
  }
}

/** A bid wins above its price, never at it. */
export function takes(limit: number, price: number): boolean {
  return limit > price;
}
