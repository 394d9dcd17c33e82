/** An adapter's page: its exports are looked at again while one is being made. */
import { refreshParts } from "../shared/dom";

const LOOK_AGAIN_MS = 3000;

function follow(): void {
  if (!document.querySelector("[data-being-made]")) return;
  // A tab that nobody sees asks nothing.
  const again = () => void refreshParts(follow);
  window.setTimeout(() => {
    if (document.visibilityState === "visible") again();
    else document.addEventListener("visibilitychange", again, { once: true });
  }, LOOK_AGAIN_MS);
}

follow();
