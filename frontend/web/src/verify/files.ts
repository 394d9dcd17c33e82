/** What a file that somebody drops on the page is. */
import { find, isObject, type Value } from "../proof/record";

export const PROOF = "finetender-proof-3";
export const RECEIPT = "finetender-receipt-1";
export const HEAD = "finetender-head-1";
/** A longer line is no entry's; the page would hold all of it at once. */
const LINE_MAX = 2 ** 24;

export type Given =
  | { kind: "proof"; text: string }
  | { kind: "receipt"; value: Value }
  | { kind: "heads"; values: readonly Value[] }
  | { kind: "transcript"; header: Value; lines: () => AsyncGenerator<string> };

/** Say what a file is by what stands in it; throws `SyntaxError` where it is nothing of ours. */
export async function readGiven(file: Blob): Promise<Given> {
  const { value: first } = await linesOf(file).next();
  const header = parse(typeof first === "string" ? first : "");
  if (isObject(header) && (find(header, "rules") ?? find(header, "snapshot")) !== undefined)
    return { kind: "transcript", header, lines: () => linesOf(file) };
  if (find(header ?? null, "format") === HEAD) {
    const values = (await file.text()).split("\n").filter((line) => line.trim());
    return { kind: "heads", values: values.map((line) => JSON.parse(line) as Value) };
  }
  const text = await file.text();
  const whole = parse(text);
  const format = whole === null ? undefined : find(whole, "format");
  if (format === PROOF) return { kind: "proof", text };
  if (format === RECEIPT) return { kind: "receipt", value: whole! };
  throw new SyntaxError("it is no receipt, no record of a bid, and no transcript of this market's kind");
}

function parse(text: string): Value | null {
  try {
    return JSON.parse(text) as Value;
  } catch {
    return null;
  }
}

/** The lines of a file that are not empty, one after the other. */
export async function* linesOf(file: Blob): AsyncGenerator<string> {
  const decoder = new TextDecoder();
  const reader = file.stream().getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    rest += done ? decoder.decode() : decoder.decode(value, { stream: true });
    const lines = rest.split("\n");
    rest = lines.pop() ?? "";
    if (rest.length > LINE_MAX) throw new SyntaxError("a line of it is too long");
    for (const line of lines) if (line.trim()) yield line;
    if (done) break;
  }
  if (rest.trim()) yield rest;
}
