/** The market, live: decisions as they fall, prices as they move; the heat map by pointer and keys. */
import { refreshParts, setText, throttle } from "../shared/dom";
import { clock, count, usd } from "../shared/format";
import { LiveStream, type Message } from "../shared/socket";

interface Decision {
  position: number;
  hash: string;
  admitted: boolean;
  payment_micros: number | null;
  refusal: string | null;
  decided_at: string | null;
}

const DECISIONS_SHOWN = 8;
/** The server's `refusal_word`. */
const REFUSALS: Record<string, string> = {
  price: "limit below the price",
  capacity: "slots were sold",
  window: "too little time",
  memory: "no node large enough",
  verified: "no verified node",
};
const redraw = throttle(() => void refreshParts(), 2500);

const place = document.querySelector<HTMLElement>("[data-market]");
if (place) {
  new LiveStream({
    path: `/ws/market/${place.dataset["market"]}/`,
    pollUrl: place.dataset["poll"] ?? "",
    onSnapshot: (message) => {
      const known = document
        .querySelector("#decisions tr[data-position]")
        ?.getAttribute("data-position");
      const decisions = (message["decisions"] ?? []) as Decision[];
      if (decisions.length && String(decisions[0]!.position) !== known) redraw();
      add(decisions);
      setText("part-head", shortHash(String(message["head_hash"] ?? "")));
    },
    onEvent: (message: Message) => {
      add(((message["decisions"] ?? []) as Decision[]).toReversed());
      setText("part-head", shortHash(String(message["head_hash"] ?? "")));
      redraw();
    },
    onState: (state, at) => {
      const dot = document.querySelector<HTMLElement>("[data-live-state]");
      if (!dot) return;
      dot.dataset["state"] = state;
      const words = dot.querySelector("[data-live-text]");
      if (words)
        words.textContent = state === "live" ? clock(new Date(at), new Date()) : "reconnecting";
    },
  }).open();
}

function shortHash(text: string): string {
  return text.length <= 16 ? text : `${text.slice(0, 8)}…${text.slice(-5)}`;
}

/** Put decisions on top of the list, newest first; ones already listed are left. */
function add(newestFirst: readonly Decision[]): void {
  const list = document.getElementById("decisions");
  if (!list) return;
  for (const decision of [...newestFirst].reverse()) {
    if (list.querySelector(`[data-position="${decision.position}"]`)) continue;
    const first = Number(
      list.querySelector<HTMLElement>("[data-position]")?.dataset["position"] ?? -1,
    );
    if (decision.position < first) continue;
    list.querySelector("[data-empty]")?.remove();
    const row = document.createElement("tr");
    row.dataset["position"] = String(decision.position);
    row.dataset["new"] = "";
    const cell = (text: string, css = "") => {
      const td = row.insertCell();
      td.className = css;
      td.textContent = text;
      return td;
    };
    cell(count(decision.position), "ink");
    cell(decision.decided_at ? clock(new Date(decision.decided_at), new Date(), true) : "");
    const what = cell("");
    const pill = document.createElement("span");
    pill.className = decision.admitted ? "pill ok" : "pill no";
    pill.textContent = decision.admitted ? "Admitted" : "Refused";
    const words = document.createElement("span");
    words.className = decision.admitted ? "ink" : "";
    words.textContent = ` ${decision.admitted ? usd(decision.payment_micros ?? 0) : (REFUSALS[decision.refusal ?? ""] ?? decision.refusal ?? "")}`;
    what.append(pill, words);
    cell(shortHash(decision.hash), "hash mono");
    list.prepend(row);
    while (list.children.length > DECISIONS_SHOWN) list.lastElementChild?.remove();
  }
}

// ---- Heat map: the tooltip follows the pointer or the focused cell; one tab stop, arrows move.

function cellOf(target: EventTarget | null): SVGRectElement | null {
  return target instanceof Element ? target.closest<SVGRectElement>("[data-cell]") : null;
}

function showTip(cell: SVGRectElement): void {
  const card = cell.closest<HTMLElement>("[data-heat-card]");
  const tip = card?.querySelector<HTMLElement>("[data-tip]");
  if (!card || !tip) return;
  const [name = "", when = "", price = "", sold = "", memory = ""] = (
    cell.dataset["cell"] ?? ""
  ).split("|");
  tip.replaceChildren();
  const bold = (text: string) => Object.assign(document.createElement("b"), { textContent: text });
  tip.append(bold(name), document.createElement("br"), when, document.createElement("br"));
  tip.append(bold(price), ` a slot, ${sold} of compute and ${memory} of memory sold`);
  tip.hidden = false;
  const box = cell.getBoundingClientRect();
  const frame = card.getBoundingClientRect();
  const left = box.left - frame.left + box.width / 2 - tip.offsetWidth / 2;
  tip.style.left = `${Math.max(8, Math.min(frame.width - tip.offsetWidth - 8, left))}px`;
  tip.style.top = `${box.bottom - frame.top + 8}px`;
  card.querySelector("[data-on]")?.removeAttribute("data-on");
  cell.setAttribute("data-on", "");
}

function hideTip(card: Element | null): void {
  const tip = card?.querySelector<HTMLElement>("[data-tip]");
  if (tip) tip.hidden = true;
  card?.querySelector("[data-on]")?.removeAttribute("data-on");
}

function stop(map: Element): SVGRectElement | null {
  return map.querySelector<SVGRectElement>("[data-cell][tabindex='0']");
}

for (const card of document.querySelectorAll<HTMLElement>("[data-heat-card]")) {
  const enter = () => {
    const map = card.querySelector("[data-heat]");
    if (map && !stop(map)) map.querySelector("[data-cell]")?.setAttribute("tabindex", "0");
  };
  enter();
  new MutationObserver(enter).observe(card, { childList: true, subtree: true });
  card.addEventListener("pointerover", (event) => {
    const cell = cellOf(event.target);
    if (cell) showTip(cell);
  });
  card.addEventListener("pointerleave", () => hideTip(card));
  card.addEventListener("focusin", (event) => {
    const cell = cellOf(event.target);
    if (cell) showTip(cell);
  });
  card.addEventListener("focusout", () => hideTip(card));
  card.addEventListener("keydown", (event) => {
    const cell = cellOf(event.target);
    if (!cell) return;
    if (event.key === "Escape") return hideTip(card);
    const rows = [...card.querySelectorAll("[data-row]")].map((row) => [
      ...row.querySelectorAll<SVGRectElement>("rect"),
    ]);
    const y = rows.findIndex((row) => row.includes(cell));
    const x = rows[y]?.indexOf(cell) ?? 0;
    const moves: Record<string, [number, number]> = {
      ArrowLeft: [-1, 0],
      ArrowRight: [1, 0],
      ArrowUp: [0, -1],
      ArrowDown: [0, 1],
      Home: [-x, 0],
      End: [(rows[y]?.length ?? 1) - 1 - x, 0],
    };
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    let [nextX, nextY] = [x + move[0], y + move[1]];
    // Cells that are not offered say nothing; step over them.
    while (
      rows[nextY]?.[nextX] &&
      !rows[nextY]![nextX]!.dataset["cell"] &&
      event.key.startsWith("Arrow")
    ) {
      nextX += move[0];
      nextY += move[1];
    }
    const next = rows[nextY]?.[nextX];
    if (!next?.dataset["cell"]) return;
    cell.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  });
}
