/** JSON values of a record, and the one text of each that hashes cover (RFC 8785). */
import canonicalize from "canonicalize";

export type Value =
  | null
  | boolean
  | number
  | string
  | readonly Value[]
  | { readonly [name: string]: Value };

/** The one text of a value; throws `SyntaxError` on a string that has none. */
export function canonical(value: Value): string {
  try {
    return canonicalize(value)!;
  } catch (error) {
    throw new SyntaxError(String(error));
  }
}

/** A member of an object; throws where there is none. */
export function member(value: Value, ...path: string[]): Value {
  const found = find(value, ...path);
  if (found === undefined) throw new SyntaxError(`the record has no ${path.join(".")}`);
  return found;
}

/** A member of an object, where there is one. */
export function find(value: Value, ...path: string[]): Value | undefined {
  let here: Value | undefined = value;
  for (const name of path) {
    here = isObject(here) && Object.hasOwn(here, name) ? here[name] : undefined;
  }
  return here;
}

/** The items of a list; none of anything else. */
export function items(value: Value | undefined): readonly Value[] {
  return Array.isArray(value) ? (value as readonly Value[]) : [];
}

/** A number as it is; throws on anything else. */
export function number(value: Value): number {
  if (typeof value !== "number") throw new SyntaxError("a number was expected");
  return value;
}

/** An object less one member. */
export function without(value: Value, name: string): Value {
  if (!isObject(value)) throw new SyntaxError("an object was expected");
  return Object.fromEntries(Object.entries(value).filter(([key]) => key !== name));
}

export function isObject(value: Value | undefined): value is { readonly [name: string]: Value } {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
