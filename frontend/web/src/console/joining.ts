/** The steps of a machine that joins, drawn by the server and asked for until all are done. */
import { refreshParts } from "../shared/dom";

const EVERY_MS = 2000;
const place = document.querySelector<HTMLElement>("[data-joining]");

function look(address: string): void {
  if (document.querySelector("#part-joining[data-done]")) return;
  const next = () => window.setTimeout(() => look(address), EVERY_MS);
  // A hidden page does not poll.
  if (document.hidden) next();
  else void refreshParts(undefined, address).finally(next);
}

if (place) look(place.dataset["joining"] ?? location.href);
