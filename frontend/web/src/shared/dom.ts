/** The few DOM helpers the pages share. */

export function byId<T extends Element = HTMLElement>(id: string): T | null {
  return document.getElementById(id) as T | null;
}

export function setText(id: string, text: string): void {
  const node = byId(id);
  if (node && node.textContent !== text) node.textContent = text;
}

/** Data the server left in a `json_script` element. */
export function pageData<T>(id: string): T | null {
  const text = byId(id)?.textContent;
  return text ? (JSON.parse(text) as T) : null;
}

const NS = "http://www.w3.org/2000/svg";

/** Append an SVG element; attributes only, so a strict style policy has nothing to say. */
export function draw(
  parent: Element,
  tag: string,
  attributes: Record<string, string | number>,
  text?: string,
): SVGGraphicsElement {
  const node = document.createElementNS(NS, tag) as SVGGraphicsElement;
  for (const [name, value] of Object.entries(attributes)) {
    node.setAttribute(
      name,
      typeof value === "number" ? String(Math.round(value * 100) / 100) : value,
    );
  }
  if (text !== undefined) node.textContent = text;
  parent.append(node);
  return node;
}

export function csrfToken(): string {
  return document.querySelector<HTMLInputElement>("input[name=csrfmiddlewaretoken]")?.value ?? "";
}

let refreshing: Promise<void> | null = null;
let again = false;

/**
 * Fetch this page again and replace the elements marked `data-part`: the server
 * stays the one place that draws them. Calls that arrive meanwhile share one
 * more round. Focus is restored by id. `address`: another page that has the parts.
 */
export function refreshParts(
  onDone: () => void = () => undefined,
  address: string = location.href,
): Promise<void> {
  if (refreshing) {
    again = true;
    return refreshing;
  }
  const round = async (): Promise<void> => {
    do {
      again = false;
      const reply = await fetch(address, { headers: { "X-Requested-With": "fetch" } });
      if (!reply.ok || reply.redirected) return;
      const fresh = new DOMParser().parseFromString(await reply.text(), "text/html");
      const focused = document.activeElement?.id;
      for (const part of document.querySelectorAll<HTMLElement>("[data-part]")) {
        if (
          part.contains(document.activeElement) &&
          part.querySelector("input:focus, textarea:focus")
        )
          continue;
        const next = fresh.getElementById(part.id);
        if (next && next.outerHTML !== part.outerHTML) part.replaceWith(document.adoptNode(next));
      }
      if (focused && document.activeElement?.id !== focused)
        byId(focused)?.focus({ preventScroll: true });
      onDone();
    } while (again);
  };
  refreshing = round()
    .catch(() => undefined)
    .finally(() => {
      refreshing = null;
    });
  return refreshing;
}

/** Run at most once in `waitMs`, always with a last run at the end. */
export function throttle(run: () => void, waitMs: number): () => void {
  let timer: number | undefined;
  let last = 0;
  return () => {
    if (timer !== undefined) return;
    timer = window.setTimeout(
      () => {
        timer = undefined;
        last = Date.now();
        run();
      },
      Math.max(0, last + waitMs - Date.now()),
    );
  };
}
