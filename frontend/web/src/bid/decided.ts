/** The page of a bid that was placed. */
import { proofPanel } from "../proof/panel";
import { moveNow } from "../shared/ribbon";

proofPanel();
const move = () => moveNow(() => undefined);
move();
window.setInterval(move, 1000);
