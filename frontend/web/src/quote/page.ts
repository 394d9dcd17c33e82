/** A quote without an account: prices follow what is typed, or a file that stays in the browser. */
import { byId, refreshParts, setText, throttle } from "../shared/dom";
import { count } from "../shared/format";
import { measureRows } from "./measure";

const form = byId<HTMLFormElement>("size-form");
/** What is read of a larger file tells enough. */
const READ_BYTES = 64 * 1024 * 1024;

if (form) {
  form.querySelector("[data-without-script]")?.setAttribute("hidden", "");
  form.querySelector("[data-measure]")?.removeAttribute("hidden");
  const ask = throttle(() => {
    const fields = [...new FormData(form)].filter(([, value]) => typeof value === "string");
    history.replaceState(null, "", `?${new URLSearchParams(fields as [string, string][])}`);
    void refreshParts();
  }, 400);
  const file = byId<HTMLInputElement>("measured-file");
  form.addEventListener("input", (event) => {
    // Another model has other limits, which stand beside its fields.
    if (event.target === byId("id_zone")) form.submit();
    else if (event.target !== file && form.checkValidity()) ask();
  });
  file?.addEventListener("change", () => {
    const chosen = file.files?.[0];
    if (chosen) void measure(chosen).then(ask);
  });
}

async function measure(chosen: File): Promise<void> {
  const text = await chosen.slice(0, READ_BYTES).text();
  const found = measureRows(chosen.name, text, chosen.size);
  const most = Number(byId<HTMLInputElement>("id_row_tokens")?.max);
  fill("id_rows", found.rows);
  fill("id_row_tokens", Math.min(found.rowTokens, most));
  setText(
    "measured-words",
    `${chosen.name}: about ${count(found.rows)} rows of ${count(found.rowTokens)} tokens. Nothing was sent.`,
  );
}

function fill(id: string, value: number): void {
  const field = byId<HTMLInputElement>(id);
  if (field) field.value = String(value);
}
