/**
 * JSON with every number and string kept as it was written. The log's hashes cover
 * bytes, and a browser would write `1e-07` and `2.0` in its own way.
 */
export type Value =
  | { kind: "object"; members: ReadonlyMap<string, { key: string; value: Value }> }
  | { kind: "array"; items: readonly Value[] }
  | { kind: "scalar"; text: string };

const SPACE = /[ \t\n\r]*/y;
const STRING = /"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y;
const SCALAR = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null/y;

/** Read one JSON value; throws `SyntaxError` on anything else, and on a key given twice. */
export function parse(text: string): Value {
  let at = 0;

  function take(pattern: RegExp): string | null {
    pattern.lastIndex = at;
    const found = pattern.exec(text)?.[0];
    if (found === undefined) return null;
    at += found.length;
    return found;
  }

  function mark(sign: string): boolean {
    take(SPACE);
    if (text[at] !== sign) return false;
    at += 1;
    return true;
  }

  function fail(wanted: string): never {
    throw new SyntaxError(`${wanted} expected at character ${at}`);
  }

  function object(): Value {
    const members = new Map<string, { key: string; value: Value }>();
    if (mark("}")) return { kind: "object", members };
    do {
      take(SPACE);
      const key = take(STRING) ?? fail("a key");
      const name = JSON.parse(key) as string;
      if (members.has(name)) throw new SyntaxError(`${key} is given twice`);
      if (!mark(":")) fail('":"');
      members.set(name, { key, value: value() });
    } while (mark(","));
    if (!mark("}")) fail('"}"');
    return { kind: "object", members };
  }

  function array(): Value {
    const items: Value[] = [];
    if (mark("]")) return { kind: "array", items };
    do items.push(value());
    while (mark(","));
    if (!mark("]")) fail('"]"');
    return { kind: "array", items };
  }

  function value(): Value {
    take(SPACE);
    if (mark("{")) return object();
    if (mark("[")) return array();
    return { kind: "scalar", text: take(STRING) ?? take(SCALAR) ?? fail("a value") };
  }

  const whole = value();
  take(SPACE);
  if (at < text.length) fail("the end");
  return whole;
}

/** The one text of a value that is hashed: keys sorted by code point, no spaces. */
export function canonical(value: Value): string {
  if (value.kind === "scalar") return value.text;
  if (value.kind === "array") return `[${value.items.map(canonical).join(",")}]`;
  const sorted = [...value.members.entries()].sort(([a], [b]) => byCodePoint(a, b));
  return `{${sorted.map(([, { key, value: member }]) => `${key}:${canonical(member)}`).join(",")}}`;
}

function byCodePoint(a: string, b: string): number {
  const [left, right] = [[...a], [...b]];
  for (let i = 0; i < Math.min(left.length, right.length); i++) {
    const apart = left[i]!.codePointAt(0)! - right[i]!.codePointAt(0)!;
    if (apart) return apart;
  }
  return left.length - right.length;
}

/** A member of an object; throws where there is none. */
export function member(value: Value, ...path: string[]): Value {
  const found = find(value, ...path);
  if (!found) throw new SyntaxError(`the record has no ${path.join(".")}`);
  return found;
}

/** A member of an object, where there is one. */
export function find(value: Value, ...path: string[]): Value | undefined {
  let here: Value | undefined = value;
  for (const name of path) {
    here = here?.kind === "object" ? here.members.get(name)?.value : undefined;
  }
  return here;
}

/** An object less one member. */
export function without(value: Value, name: string): Value {
  if (value.kind !== "object") throw new SyntaxError("an object was expected");
  return { kind: "object", members: new Map([...value.members].filter(([key]) => key !== name)) };
}

/** What a scalar says, as the browser reads it. */
export function plain(value: Value): string | number | boolean | null {
  if (value.kind !== "scalar") throw new SyntaxError("a plain value was expected");
  return JSON.parse(value.text) as string | number | boolean | null;
}
