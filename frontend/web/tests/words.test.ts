import { describe, expect, it } from "vitest";
import { type Part, readWords } from "../src/playground/words";

async function read(text: string, pieceBytes: number): Promise<Part[]> {
  const bytes = new TextEncoder().encode(text);
  const body = new ReadableStream<Uint8Array>({
    start(controller) {
      for (let at = 0; at < bytes.length; at += pieceBytes)
        controller.enqueue(bytes.slice(at, at + pieceBytes));
      controller.close();
    },
  });
  const parts: Part[] = [];
  for await (const part of readWords(body)) parts.push(part);
  return parts;
}

const event = (value: unknown): string => `data: ${JSON.stringify(value)}\n\n`;

describe("a streamed answer", () => {
  const words = (text: string) => event({ choices: [{ delta: { content: text } }] });
  const usage = event({ choices: [], usage: { completion_tokens: 2 } });
  const stream = `${words("Grüße ")}${words("👋")}${usage}data: [DONE]\n\n`;

  it.each([1, 3, 1000])("is the same in pieces of %i bytes", async (size) => {
    expect(await read(stream, size)).toEqual([
      { text: "Grüße " },
      { text: "👋" },
      { text: "", tokens: 2 },
    ]);
  });

  it("tells why it ended early", async () => {
    const parts = await read(words("A") + event({ error: { message: "No node." } }), 7);
    expect(parts).toEqual([{ text: "A" }, { text: "", error: "No node." }]);
  });
});
