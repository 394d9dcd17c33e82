/** The quote card: price, plan, what would be held, and deadlines worth a look. */
import { byId, setText } from "../shared/dom";
import { clock, duration, spare, usd, usdExact } from "../shared/format";
import { earliestWin, nudges, treadAt, wins, type Quote } from "./quote";

function pill(tone: string, words: string): void {
  const box = byId("q-pill");
  if (!box) return;
  const span = document.createElement("span");
  span.className = `pill ${tone}`;
  span.textContent = words;
  box.replaceChildren(span);
}

/** The answer as a sentence, for those who do not see the card change. */
export function answerWords(quote: Quote, chosen: number, worth: number | null): string {
  const here = treadAt(quote.curve, chosen);
  if (!here) return "No plan is ready by this deadline.";
  const price = `The price is ${usd(here.price)}.`;
  if (worth === null) return price;
  return `${price} ${wins(here, worth) ? "This bid wins." : "This bid does not win."}`;
}

export function showQuote(quote: Quote, chosen: number, worth: number | null): void {
  const now = new Date();
  const here = treadAt(quote.curve, chosen);
  const at = (seconds: number) => clock(new Date(seconds * 1000), now, quote.slot < 60);
  const split = byId("q-split");
  const price = byId("q-price");
  price?.classList.toggle("short", !here);
  const away = chosen - now.getTime() / 1000;
  setText("dl-words", away > 0 ? `in ${duration(away)}` : "in the past");
  if (!here) {
    const first = quote.curve[0];
    pill("no", "No plan");
    setText("q-price", first ? "Too soon" : "No plan");
    setText("q-done", first ? `The earliest deadline is ${at(first.deadline)}` : "");
    setText("q-spare", first ? `, at ${usd(first.price)}.` : quote.message);
    setText("m-price", "No plan by then");
    setText("m-sub", first ? `from ${at(first.deadline)} on` : "");
    split?.setAttribute("hidden", "");
    return;
  }
  setText("q-price", usd(here.price));
  setText("q-done", `Done by ${at(here.finish)}`);
  setText("q-spare", `, ${spare(chosen - here.finish)}`);
  setText("m-price", usd(here.price));
  setText("m-sub", `done by ${at(here.finish)}`);
  const ok = worth !== null && wins(here, worth);
  if (worth === null) pill("", "Say what it is worth");
  else pill(ok ? "ok" : "no", ok ? "This bid wins" : "This bid does not win");
  split?.toggleAttribute("hidden", !ok);
  if (ok && worth !== null) {
    byId("q-bar")?.setAttribute("width", `${((here.price / worth) * 100).toFixed(2)}%`);
    const [pay, keep] = [usdExact(here.price), usdExact(worth - here.price)];
    setText("q-pay", pay);
    setText("q-keep", keep);
    setText("q-hold", `Holds ${usdExact(worth)}, charges ${pay}, releases ${keep}`);
  } else if (worth !== null) {
    const later = earliestWin(quote.curve, worth, chosen);
    setText(
      "q-hold",
      later
        ? `With this limit ${at(later.deadline)} would win at ${usd(later.price)}.`
        : `The price is ${usd(here.price)}; a bid must be above it.`,
    );
  } else
    setText("q-hold", "The limit is held until the answer, then the rest comes straight back.");
}

/** Other deadlines worth a look, as buttons. */
export function showNudges(quote: Quote, chosen: number, choose: (deadline: number) => void): void {
  const shelf = byId("nudges");
  if (!shelf) return;
  const now = new Date();
  const found = nudges(
    quote.curve,
    chosen,
    quote.slot / 2,
    (later, saves) => `${duration(later)} later saves ${usd(saves)}`,
  );
  shelf.hidden = found.length === 0;
  shelf.replaceChildren(
    ...found.map((nudge) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "nudge";
      const line = document.createElement("b");
      for (const text of [
        clock(new Date(nudge.deadline * 1000), now, quote.slot < 60),
        usd(nudge.price),
      ]) {
        line.append(Object.assign(document.createElement("span"), { textContent: text }));
      }
      button.append(line, nudge.words);
      button.addEventListener("click", () => choose(nudge.deadline));
      return button;
    }),
  );
}
