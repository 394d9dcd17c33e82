/** How many rows a text file holds and how long they are, about: the market counts exactly. */

export interface Measured {
  rows: number;
  rowTokens: number;
}

const LETTERS_OF_A_TOKEN = 4;

/**
 * Measure the start of a file of `size` bytes; what is not in `text` is taken to be like it. Keys,
 * quotes and brackets of JSON are no part of what is learnt.
 */
export function measureRows(name: string, text: string, size: number): Measured {
  const rows = listRows(name, text);
  const letters = rows.reduce((sum, row) => sum + row.length, 0);
  const read = new TextEncoder().encode(text).length;
  const share = read > 0 && size > read ? size / read : 1;
  return {
    rows: Math.max(1, Math.round(rows.length * share)),
    rowTokens: Math.max(2, Math.ceil(letters / LETTERS_OF_A_TOKEN / Math.max(1, rows.length))),
  };
}

function listRows(name: string, text: string): string[] {
  if (/\.json$/i.test(name)) {
    try {
      const parsed: unknown = JSON.parse(text);
      if (Array.isArray(parsed)) return parsed.map(readTexts);
    } catch {
      // Cut off, or lines of JSON after all.
    }
  }
  const lines = text.split(/\r?\n/).filter((line) => line.trim());
  // The first line of a table names its columns.
  if (/\.[ct]sv$/i.test(name)) return lines.slice(1);
  return lines.map((line) => {
    try {
      return readTexts(JSON.parse(line));
    } catch {
      return line;
    }
  });
}

/** The texts in a value, without its keys. */
function readTexts(value: unknown): string {
  if (typeof value === "string") return value;
  if (typeof value !== "object" || value === null) return "";
  return Object.values(value).map(readTexts).join(" ");
}
