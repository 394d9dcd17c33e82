/** The answer of the express lane: seconds count down and the page follows the job. */
import { byId, refreshParts } from "../shared/dom";
import { duration } from "../shared/format";

const LOOK_AGAIN_MS = 1000;

/** Seconds until the certified end, as the server's page says it. */
function tick(): void {
  const left = byId("time-left");
  const due = Number(left?.dataset["due"]);
  if (left && due) {
    const seconds = due - Date.now() / 1000;
    const words = seconds < 0 ? `${duration(-seconds)} over` : `${duration(seconds)} left`;
    if (left.textContent !== words) left.textContent = words;
  }
}

function follow(): void {
  tick();
  if (!document.querySelector("[data-open]")) return;
  window.setTimeout(() => {
    if (document.hidden) follow();
    else void refreshParts(tick).finally(follow);
  }, LOOK_AGAIN_MS);
}

follow();
