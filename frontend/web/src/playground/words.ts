/** The parts of a streamed answer of `/v1/chat/completions`. */
export interface Part {
  text: string;
  /** Tokens of the whole answer, with its last part. */
  tokens?: number;
  error?: string;
}

interface Chunk {
  choices?: { delta?: { content?: string } }[];
  usage?: { completion_tokens: number } | null;
  error?: { message: string };
}

/** Read server-sent events; a piece of the stream may end anywhere, within a letter too. */
export async function* readWords(body: ReadableStream<Uint8Array>): AsyncGenerator<Part> {
  const reader = body.pipeThrough(new TextDecoderStream() as never).getReader();
  let held = "";
  while (true) {
    const { done, value } = (await reader.read()) as { done: boolean; value?: string };
    if (done) return;
    held += value ?? "";
    const events = held.split("\n\n");
    held = events.pop() ?? "";
    for (const event of events) {
      const data = event.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data) as Chunk;
      if (chunk.error) yield { text: "", error: chunk.error.message };
      else {
        const part: Part = { text: chunk.choices?.[0]?.delta?.content ?? "" };
        if (chunk.usage) part.tokens = chunk.usage.completion_tokens;
        yield part;
      }
    }
  }
}
