import { describe, expect, it } from "vitest";

import { measureRows } from "../src/quote/measure";

const row = JSON.stringify({ prompt: "x".repeat(20), completion: "y".repeat(19) });

describe("measureRows", () => {
  it("counts lines of JSON and their texts alone", () => {
    const text = `${row}\n\n${row}\n`;
    expect(measureRows("a.jsonl", text, text.length)).toEqual({ rows: 2, rowTokens: 10 });
  });

  it("reads a list of JSON, and a table without its heading", () => {
    const list = `[${row},${row},${row}]`;
    expect(measureRows("a.json", list, list.length)).toEqual({ rows: 3, rowTokens: 10 });
    expect(measureRows("a.csv", "prompt,answer\nabcd,efgh\n", 24)).toEqual({ rows: 1, rowTokens: 3 });
  });

  it("takes the rest of a long file to be like its start", () => {
    const text = `${row}\n`.repeat(10);
    expect(measureRows("a.jsonl", text, 5 * text.length).rows).toBe(50);
  });

  it("finds at least one row in anything", () => {
    expect(measureRows("a.jsonl", "", 0)).toEqual({ rows: 1, rowTokens: 2 });
    expect(measureRows("a.json", "{", 1)).toEqual({ rows: 1, rowTokens: 2 });
  });
});
