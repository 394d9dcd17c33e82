/** Whether the form can be sent as it stands, and what is missing where it cannot. */
import { usd } from "../shared/format";
import { treadAt, wins, type Quote } from "./quote";

export interface Filled {
  hasData: boolean;
  isUploading: boolean;
  /** What the server said of a setting, a deadline or a limit; empty when nothing is wrong. */
  fault: string;
  quote: Quote | null;
  /** Unix seconds. */
  deadline: number;
  /** Micro-dollars; `null` until one is typed. */
  limit: number | null;
  /** Micro-dollars in the wallet that no other bid holds. */
  available: number;
  byCard: boolean;
  /** The limit stays in the browser, so that only the price is held. */
  keepsLimit?: boolean;
}

/** The least that card networks take, in micro-dollars. */
const CARD_MIN = 500_000;

/** Why a bid cannot be placed now; empty when it can. */
export function whyNotYet(form: Filled): string {
  if (form.isUploading) return "The upload is not finished.";
  if (!form.hasData) return "Upload or choose data first.";
  if (form.fault) return form.fault;
  if (!form.quote) return "There is no quote yet. Give a deadline.";
  const here = treadAt(form.quote.curve, form.deadline);
  if (!here) {
    return form.quote.curve.length ? "No plan is ready by this deadline." : form.quote.message;
  }
  if (form.limit === null) return "Say what it is worth to you.";
  if (!wins(here, form.limit)) return "Your limit must be above the price.";
  if (form.byCard) {
    return form.limit < CARD_MIN ? "Cards pay $0.50 or more. Use the wallet for less." : "";
  }
  if (form.keepsLimit) {
    return here.price <= form.available
      ? ""
      : `The price is above the ${usd(form.available)} that your wallet has available.`;
  }
  if (form.limit > form.available) {
    return `A bid holds its limit, and your wallet has ${usd(form.available)} available.`;
  }
  return "";
}
