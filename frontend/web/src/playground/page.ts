/** The playground: one prompt, answered by a base model and by an adapter side by side. */
import { byId, csrfToken } from "../shared/dom";
import { readWords } from "./words";

interface Model {
  id: string;
  parent?: string;
}

const form = byId<HTMLFormElement>("playground-form");
let running: AbortController | null = null;

if (form) {
  const asked = new URLSearchParams(location.search);
  for (const name of ["system", "prompt", "temperature", "max_tokens"]) {
    const value = asked.get(name);
    const field = form.elements.namedItem(name) as HTMLInputElement | null;
    if (field && value !== null) field.value = value;
  }
  void listModels(asked);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    void ask();
  });
  byId("stop")?.addEventListener("click", () => running?.abort());
}

/** Fill both choices; the address names a model, or the job that made it. */
async function listModels(asked: URLSearchParams): Promise<void> {
  const answer = await fetch("/v1/models", { headers: whose() });
  const models = answer.ok ? ((await answer.json()) as { data: Model[] }).data : [];
  const job = (asked.get("job") ?? "").replace(/^ftjob-/, "");
  for (const [side, fallback] of [["base", 0] as const, ["tuned", models.length - 1] as const]) {
    const select = byId<HTMLSelectElement>(`model-${side}`);
    if (!select) continue;
    select.replaceChildren(...models.map((model) => new Option(model.id, model.id)));
    const ofJob = side === "tuned" && job && models.find((model) => model.id.endsWith(`:${job}`));
    const newest = models.find((model) => model.id.startsWith("ft:"));
    const first = side === "tuned" && newest ? newest.id : models[fallback]?.id;
    select.value = asked.get(side) ?? (ofJob ? ofJob.id : (first ?? ""));
  }
}

/** For which organisation the page asks: the one whose models it shows and whose wallet pays. */
function whose(): Record<string, string> {
  return { "Finetender-Organisation": form?.dataset["organisation"] ?? "" };
}

async function ask(): Promise<void> {
  if (!form) return;
  running?.abort();
  const stopping = new AbortController();
  running = stopping;
  const fields = new URLSearchParams(new FormData(form) as unknown as Record<string, string>);
  fields.delete("csrfmiddlewaretoken");
  history.replaceState(null, "", `?${fields}`);
  await Promise.all(
    ["base", "tuned"].map((side) => write(side, fields, stopping.signal)),
  );
}

/** Stream one side's answer. */
async function write(side: string, fields: URLSearchParams, signal: AbortSignal): Promise<void> {
  const text = byId(`answer-${side}`);
  const facts = byId(`facts-${side}`);
  if (!text || !facts) return;
  text.textContent = "";
  facts.textContent = "Waiting for a node";
  const messages = [{ role: "user", content: fields.get("prompt") ?? "" }];
  const system = fields.get("system");
  if (system) messages.unshift({ role: "system", content: system });
  const began = performance.now();
  try {
    const answer = await fetch("/v1/chat/completions", {
      method: "POST",
      signal,
      headers: { "Content-Type": "application/json", "X-CSRFToken": csrfToken(), ...whose() },
      body: JSON.stringify({
        model: fields.get(side),
        messages,
        temperature: Number(fields.get("temperature")),
        max_tokens: Number(fields.get("max_tokens")),
        stream: true,
        stream_options: { include_usage: true },
      }),
    });
    if (!answer.ok || !answer.body) {
      const refusal = (await answer.json()) as { error: { message: string } };
      facts.textContent = refusal.error.message;
      return;
    }
    for await (const part of readWords(answer.body)) {
      if (part.error) {
        facts.textContent = part.error;
        return;
      }
      text.append(part.text);
      if (part.tokens) {
        const seconds = (performance.now() - began) / 1000;
        facts.textContent = `${part.tokens} tokens in ${seconds.toFixed(1)} s`;
      }
    }
  } catch {
    facts.textContent = signal.aborted ? "Stopped" : "The connection broke. Ask again.";
  }
}
