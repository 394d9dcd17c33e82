/** Sending a file with its progress shown, and a button that stops it. */
import { bytes } from "./format";

export interface Answer {
  /** Where redirects led. */
  url: string;
  status: number;
  text: string;
}

/** Sent to the end it resolves; stopped, it rejects with an `AbortError`. */
export function sendFile(
  url: string,
  body: FormData,
  signal: AbortSignal,
  onProgress: (share: number) => void,
): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    const stopped = () => new DOMException("The upload was stopped.", "AbortError");
    if (signal.aborted) return reject(stopped());
    signal.addEventListener("abort", () => request.abort(), { once: true });
    request.upload.addEventListener("progress", (event) => {
      if (event.lengthComputable) onProgress(event.loaded / event.total);
    });
    request.addEventListener("load", () =>
      resolve({ url: request.responseURL, status: request.status, text: request.responseText }),
    );
    request.addEventListener("abort", () => reject(stopped()));
    request.addEventListener("error", () => reject(new Error("the connection was lost")));
    request.open("POST", url);
    request.send(body);
  });
}

/** The words beside the bar: what is sent so far, then that it is being checked. */
export function progressWords(name: string, size: number, share: number): string {
  if (share >= 1) return `Checking ${name} line by line`;
  return `Uploading ${name}, ${bytes(share * size)} of ${bytes(size)}`;
}

/** Draw the progress in the `data-upload` box under `host`. */
export function showUpload(host: ParentNode, words: string, share: number | null): void {
  const box = host.querySelector<HTMLElement>("[data-upload]");
  const text = box?.querySelector<HTMLElement>("[data-upload-words]");
  const bar = box?.querySelector<HTMLProgressElement>("progress");
  const stop = box?.querySelector<HTMLButtonElement>("[data-upload-stop]");
  if (!box || !text || !bar || !stop) return;
  box.hidden = words === "";
  text.textContent = words;
  const isSending = share !== null;
  bar.hidden = stop.hidden = !isSending;
  // A bar without a value moves by itself: how long checking takes is not known.
  if (isSending && share < 1) bar.value = share;
  else bar.removeAttribute("value");
}
