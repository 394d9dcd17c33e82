/** The page of a bid that was placed. */
import { proofPanel } from "../proof/panel";
import { byId } from "../shared/dom";
import { usdExact } from "../shared/format";
import { recallLimit, takes } from "./kept_limit";
import { moveNow } from "../shared/ribbon";

proofPanel();
const move = () => moveNow(() => undefined);
move();
window.setInterval(move, 1000);

answerByItself();

/** Take the price or leave it, by the limit that was kept as the bid was placed here. */
function answerByItself(): void {
  const offer = document.querySelector<HTMLElement>("[data-price-offer]");
  const limit = offer && recallLimit(offer.dataset["key"] ?? "");
  if (!offer || limit === null || new URLSearchParams(location.search).has("by")) return;
  const answer = takes(limit, Number(offer.dataset["priceOffer"]));
  const button = document.querySelector<HTMLButtonElement>(`button[name=take][value=${answer}]`);
  const words = answer
    ? `It is below your ${usdExact(limit)}: your browser takes it.`
    : `It is not below your ${usdExact(limit)}: your browser leaves it.`;
  offer.append(Object.assign(document.createElement("p"), { className: "strong", textContent: words }));
  button?.form?.requestSubmit(button);
}

// Who has just pressed the button, or whose browser has just answered, hears the answer first.
const from = document.referrer ? new URL(document.referrer).pathname : "";
if (from === "/bids/new" || from === location.pathname) {
  byId("decision")?.focus({ preventScroll: true });
}
