/** Words for money, time and sizes; the same rules as the server's filters. */

const MICROS = 1_000_000;

/** `$4.67`; amounts under a dollar have up to four decimals, so that small ones are not shown as nothing. */
export function usd(micros: number): string {
  const dollars = micros / MICROS;
  if (micros !== 0 && Math.abs(micros) < 100) return `$${usdInput(micros)}`;
  const most = Math.abs(dollars) < 1 ? 4 : 2;
  return `$${dollars.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: most })}`;
}

/** To the micro-dollar, for what must be exact. */
export function usdExact(micros: number): string {
  const [whole = "", decimals = ""] = usdInput(micros).split(".");
  return `$${Number(whole).toLocaleString("en-US")}.${decimals}`;
}

/** An amount as a money field holds it: exact, with two decimals or more. */
export function usdInput(micros: number): string {
  const exact = (micros / MICROS).toFixed(6);
  return exact.replace(/0{1,4}$/, "");
}

/** Reads "9", "9.5" and "9,50"; `null` when it is not an amount. */
export function parseUsd(text: string): number | null {
  const typed = text.trim().replace(/^\$/, "").trim();
  // "1,000" could be two amounts, so it is none.
  const clean = /^\d+,\d{1,2}$/.test(typed) ? typed.replace(",", ".") : typed;
  if (!/^\d+(\.\d{1,6})?$/.test(clean)) return null;
  const micros = Math.round(Number(clean) * MICROS);
  return Number.isSafeInteger(micros) && micros > 0 ? micros : null;
}

export function count(value: number): string {
  return Math.round(value).toLocaleString("en-US");
}

const DAY = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const MONTH = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const two = (value: number) => String(value).padStart(2, "0");

/** Today `17:30`, this week `Thu 12:31`, else `20 Nov 2026`. */
export function clock(at: Date, now: Date, seconds = false): string {
  const time = `${two(at.getHours())}:${two(at.getMinutes())}${seconds ? `:${two(at.getSeconds())}` : ""}`;
  if (at.toDateString() === now.toDateString()) return time;
  if (Math.abs(at.getTime() - now.getTime()) < 6 * 86_400_000) {
    return `${DAY[at.getDay()]} ${time}`;
  }
  return `${at.getDate()} ${MONTH[at.getMonth()]} ${at.getFullYear()}`;
}

/** At most two units: `0.31 s`, `44 min`, `2 h 10 min`. */
export function duration(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  if (seconds < 1) return `${Math.max(0, seconds).toFixed(2)} s`;
  if (whole < 60) return `${whole} s`;
  if (whole < 600)
    return whole % 60 ? `${Math.floor(whole / 60)} min ${whole % 60} s` : `${whole / 60} min`;
  const minutes = Math.round(whole / 60);
  if (minutes < 60) return `${minutes} min`;
  if (minutes < 1440)
    return minutes % 60 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${minutes / 60} h`;
  const hours = Math.round(minutes / 60);
  return hours % 24 ? `${Math.floor(hours / 24)} d ${hours % 24} h` : `${hours / 24} d`;
}

/** `30 min to spare` or `6 min late`; never a negative number. */
export function spare(seconds: number): string {
  if (Math.abs(seconds) < 1) return "right on the deadline";
  return seconds >= 0 ? `${duration(seconds)} to spare` : `${duration(-seconds)} late`;
}

export function bytes(value: number): string {
  if (value < 1000) return `${value} B`;
  if (value < 1e6) return `${(value / 1e3).toFixed(1)} kB`;
  if (value < 1e9) return `${(value / 1e6).toFixed(1)} MB`;
  return `${(value / 1e9).toFixed(1)} GB`;
}

/**
 * `value` for an `<input type="datetime-local">`, in the visitor's own time. Whole seconds, rounded
 * up unless that passes `last`: a deadline a moment before a slot's end would lose the slot.
 */
export function localInput(seconds: number, last = Infinity): string {
  const up = Math.ceil(seconds);
  const at = new Date((up > last ? Math.floor(seconds) : up) * 1000);
  return (
    `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}` +
    `T${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`
  );
}
