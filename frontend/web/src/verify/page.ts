/** The Verify page: files are read and checked in this browser, and nothing of them is sent. */
import { claimOf, decisionCheck, shortHash, type Step } from "../proof/check";
import { find, items, member, type Value } from "../proof/record";
import { say } from "../proof/report";
import { byId } from "../shared/dom";
import { count, parseUsd, usdExact } from "../shared/format";
import { readGiven, type Given } from "./files";
import { signaturesCheck, transcriptCheck } from "./transcript";

const input = byId<HTMLInputElement>("verify-file");
const zone = byId("verify-drop");
const result = byId("verify-result");
let round = 0;

if (input && zone && result) {
  input.disabled = false;
  input.addEventListener("change", () => void check([...(input.files ?? [])], result));
  byId("verify-limit")?.addEventListener("change", () => {
    if (input.files?.length) void check([...input.files], result);
  });
  for (const name of ["dragenter", "dragover"])
    zone.addEventListener(name, (event) => {
      event.preventDefault();
      zone.dataset["over"] = "";
    });
  for (const name of ["dragleave", "drop"])
    zone.addEventListener(name, () => delete zone.dataset["over"]);
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    const files = (event as DragEvent).dataTransfer?.files;
    if (!files?.length) return;
    input.files = files;
    void check([...files], result);
  });
}

async function check(files: readonly File[], result: HTMLElement): Promise<void> {
  const mine = ++round;
  const show: typeof say = (...args) => {
    if (mine === round) say(...args);
  };
  if (!files.length) return;
  if (!globalThis.crypto?.subtle) {
    const words = "This browser computes SHA-256 only over HTTPS. Use finetender-verify.";
    return show(result, "warn", words, []);
  }
  result.dataset["busy"] = "";
  show(result, "warn", "Checking…", []);
  try {
    const given: Given[] = [];
    for (const file of files) given.push(await readGiven(file));
    const tell = (entries: number) =>
      show(result, "warn", `Checking: ${count(entries)} entries so far…`, []);
    const steps = [...(await checkAll(given, tell)), ...(await keyStep(signedOf(given)))];
    const wrong = steps.filter((step) => !step.ok).length;
    if (wrong) show(result, "bad", `${wrong} of ${steps.length} checks failed.`, steps);
    else show(result, "ok", "Checked in this browser. Everything holds.", steps);
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    show(result, "bad", `The file cannot be checked: ${why}.`, []);
  } finally {
    if (mine === round) delete result.dataset["busy"];
  }
}

/** Every check that these files allow; a log is held against all receipts and heads beside it. */
async function checkAll(given: readonly Given[], tell: (entries: number) => void): Promise<Step[]> {
  const steps: Step[] = [];
  for (const each of given) if (each.kind === "proof") steps.push(...(await checkProof(each.text)));
  const signed = signedOf(given);
  const logs = given.filter((each) => each.kind === "transcript");
  for (const log of logs)
    steps.push(...(await transcriptCheck(log.header, log.lines(), signed, tell)));
  const alone = given.filter((each) => each.kind === "receipt" || each.kind === "heads");
  if (!logs.length && alone.length) steps.push(...(await signaturesCheck(signedOf(alone))));
  return steps;
}

async function checkProof(text: string): Promise<Step[]> {
  const claim = claimOf(JSON.parse(text) as Value);
  const typed = byId<HTMLInputElement>("verify-limit")?.value.trim() ?? "";
  const limit = typed ? parseUsd(typed) : claim.limitMicros;
  if (limit === null) throw new SyntaxError("give your limit in dollars, such as 9.00");
  const report = await decisionCheck(text, { ...claim, limitMicros: limit });
  const what: Step = {
    ok: true,
    title: claim.admitted
      ? `Bid ${claim.bidId} won at ${usdExact(claim.paymentMicros ?? 0)}`
      : `Bid ${claim.bidId} was refused`,
    detail: typed
      ? `Checked with the limit that you gave, ${usdExact(limit)}.`
      : `The record says that its limit was ${usdExact(limit)}; type yours to check it.`,
  };
  return [what, ...report.steps];
}

/** All that somebody signed: receipts, heads, and the receipt in a record. */
function signedOf(given: readonly Given[]): Value[] {
  return given.flatMap((each): Value[] => {
    if (each.kind === "receipt") return [each.value];
    if (each.kind === "heads") return [...each.values];
    if (each.kind === "proof") return [member(JSON.parse(each.text) as Value, "receipt")];
    return [];
  });
}

/** Whether this market publishes the keys that signed; its answer is not proof by itself. */
async function keyStep(signed: readonly Value[]): Promise<Step[]> {
  const used = new Set(signed.map((each) => String(find(each, "public_key"))));
  if (!used.size) return [];
  const reply = await fetch("/.well-known/finetender-keys.json");
  if (!reply.ok) throw new Error("the market's keys did not arrive");
  const keys = items(find((await reply.json()) as Value, "keys"));
  const known = new Set(keys.map((key) => String(find(key, "public_key"))));
  return [...used].map((key) => ({
    ok: known.has(key),
    title: known.has(key) ? "This market publishes the key" : "This market has no such key",
    detail: `${shortHash(key)} ${known.has(key) ? "is among" : "is not among"} its keys. Compare it with a copy of yours.`,
  }));
}
