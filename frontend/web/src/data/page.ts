/** Pages of data sets: an upload with its progress, and a file that is being read. */
import { byId } from "../shared/dom";
import { progressWords, sendFile, showUpload } from "../shared/upload";

const LOOK_AGAIN_MS = 1000;
const FAILED = "The upload did not arrive. Nothing was stored; try again.";
let sending: AbortController | null = null;

document.addEventListener("submit", (event) => {
  const form = event.target as HTMLFormElement;
  const file = form.id === "upload-form" ? new FormData(form).get("file") : null;
  if (!(file instanceof File) || !file.name || event.defaultPrevented) return;
  event.preventDefault();
  void send(form, file);
});
document.addEventListener("click", (event) => {
  if ((event.target as Element).closest("[data-upload-stop]")) sending?.abort();
});
follow();

async function send(form: HTMLFormElement, file: File): Promise<void> {
  const host = form.parentElement ?? form;
  const control = (sending = new AbortController());
  const progress = (share: number) =>
    showUpload(host, progressWords(file.name, file.size, share), share);
  const button = form.querySelector<HTMLButtonElement>("button");
  if (button) button.disabled = true;
  progress(0);
  try {
    const answer = await sendFile(form.action, new FormData(form), control.signal, progress);
    if (new URL(answer.url).pathname !== location.pathname) location.assign(answer.url);
    else replaceMain(answer.text);
  } catch (error) {
    showUpload(host, control.signal.aborted ? "Stopped. Nothing was stored." : FAILED, null);
    if (!control.signal.aborted) console.error(error);
  } finally {
    if (button) button.disabled = false;
  }
}

/** The same page with what is wrong with the file. */
function replaceMain(text: string): void {
  const next = new DOMParser().parseFromString(text, "text/html").querySelector("main");
  const main = document.querySelector("main");
  if (!next || !main) return;
  main.replaceWith(document.adoptNode(next));
  document.querySelector<HTMLElement>("main [role=alert]")?.focus();
}

/** Look again until the file is read; then the page is another, or asks something. */
function follow(): void {
  if (!document.querySelector("[data-reading]")) return;
  window.setTimeout(async () => {
    try {
      const reply = await fetch(location.href);
      if (reply.redirected) return location.assign(reply.url);
      const page = new DOMParser().parseFromString(await reply.text(), "text/html");
      const next = page.getElementById("part-upload");
      if (next) byId("part-upload")?.replaceWith(document.adoptNode(next));
    } catch (error) {
      // The network is away; it may be back at the next look.
      console.error(error);
    }
    follow();
  }, LOOK_AGAIN_MS);
}
