/** The express form: price and answer for every SLO while its slider moves. */
import { byId, pageData, refreshParts, setText, throttle } from "../shared/dom";
import { clock, usd } from "../shared/format";

interface SloPreview {
  slo_s: number;
  price_micros: number;
  is_certain: boolean;
}

const LOOK_AGAIN_MS = 3000;
const form = byId<HTMLFormElement>("express-form");
const slider = byId<HTMLInputElement>("id_slo_s");
let slos: SloPreview[] = [];

if (form && slider) {
  readSlos();
  slider.addEventListener("input", show);
  // Another job has other prices; the address has what they belong to.
  const reload = throttle(() => {
    history.replaceState(null, "", `?${jobFields(form)}`);
    void refreshParts(readSlos);
  }, 400);
  form.addEventListener("input", (event) => {
    if (event.target !== slider) reload();
  });
  window.setInterval(() => {
    if (!document.hidden) void refreshParts(readSlos);
  }, LOOK_AGAIN_MS);
}

function jobFields(of: HTMLFormElement): URLSearchParams {
  const fields = new URLSearchParams();
  for (const [name, value] of new FormData(of)) {
    if (typeof value === "string" && !["csrfmiddlewaretoken", "key", "slo_s"].includes(name))
      fields.set(name, value);
  }
  return fields;
}

/** Take what the server drew last; the slider stays where it is while that is on sale. */
function readSlos(): void {
  slos = pageData<SloPreview[]>("slos") ?? [];
  const [first, second] = slos;
  const last = slos[slos.length - 1];
  const choice = byId("slo-choice");
  if (choice) choice.hidden = !first;
  if (!slider || !first || !last) return;
  const before = Number(slider.value);
  slider.min = String(first.slo_s);
  slider.step = String(second ? second.slo_s - first.slo_s : 1);
  slider.max = String(last.slo_s);
  slider.value = String(before || first.slo_s);
  show();
}

function show(): void {
  const asked = Number(slider?.value);
  const found = slos.find((one) => one.slo_s >= asked) ?? slos[slos.length - 1];
  if (!found) return;
  const now = new Date();
  setText("slo-seconds", `${found.slo_s} s`);
  setText("slo-price", usd(found.price_micros));
  const done = clock(new Date(now.getTime() + found.slo_s * 1000), now, true);
  setText(
    "slo-answer",
    found.is_certain
      ? `A machine is free for it: done by ${done}.`
      : "No machine is free for it; express may add one, or offer a later time.",
  );
  slider?.setAttribute("aria-valuetext", `${found.slo_s} seconds for ${usd(found.price_micros)}`);
}
