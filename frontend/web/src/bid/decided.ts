/** The page of a bid that was placed. */
import { proofPanel } from "../proof/panel";
import { byId } from "../shared/dom";
import { moveNow } from "../shared/ribbon";

proofPanel();
const move = () => moveNow(() => undefined);
move();
window.setInterval(move, 1000);

// Who has just pressed the button hears the answer first.
if (new URL(document.referrer || location.href).pathname === "/bids/new") {
  byId("decision")?.focus({ preventScroll: true });
}
