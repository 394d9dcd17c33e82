/**
 * A live stream: one snapshot, then ordered events. Snapshot + events always
 * equals a fresh snapshot, so any doubt (a gap, a dropped socket) is settled by
 * asking for a new one. While no socket can be had, the same snapshot is polled.
 */
export interface Message {
  type: string;
  seq: number;
  [key: string]: unknown;
}

export type Verdict = "snapshot" | "event" | "old" | "gap";

/** Decides what a message means; knows nothing of sockets. */
export class Sequencer {
  #last: number | null = null;

  get last(): number | null {
    return this.#last;
  }

  judge(message: Message): Verdict {
    if (message.type === "snapshot") {
      if (this.#last !== null && message.seq < this.#last) return "old";
      this.#last = message.seq;
      return "snapshot";
    }
    if (this.#last === null) return "gap";
    if (message.seq <= this.#last) return "old";
    if (message.seq > this.#last + 1) return "gap";
    this.#last = message.seq;
    return "event";
  }
}

/** Full jitter: anywhere between half a second and the doubled, capped delay. */
export function backoffMs(attempt: number, random: () => number = Math.random): number {
  const ceiling = Math.min(30_000, 1000 * 2 ** attempt);
  return Math.round(500 + random() * (ceiling - 500));
}

export type StreamState = "live" | "polling" | "stale";

export interface StreamOptions {
  /** Path of the websocket on this host. */
  path: string;
  /** URL that answers with the same snapshot as JSON. */
  pollUrl: string;
  onSnapshot: (message: Message) => void;
  onEvent: (message: Message) => void;
  onState: (state: StreamState, lastUpdateAt: number) => void;
  pollEveryMs?: number;
}

const GIVE_UP_ON_SILENCE_MS = 45_000;

export class LiveStream {
  readonly #options: StreamOptions;
  readonly #sequencer = new Sequencer();
  #socket: WebSocket | null = null;
  #attempt = 0;
  #lastUpdateAt = Date.now();
  #pollTimer: number | undefined;
  #reconnectTimer: number | undefined;
  #closed = false;

  constructor(options: StreamOptions) {
    this.#options = options;
    document.addEventListener("visibilitychange", () => {
      if (document.visibilityState === "visible" && !this.#socket) this.open();
    });
    window.addEventListener("pagehide", () => this.close());
    window.setInterval(() => this.#watch(), 5000);
  }

  open(): void {
    if (this.#closed || this.#socket) return;
    window.clearTimeout(this.#reconnectTimer);
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(`${scheme}//${location.host}${this.#options.path}`);
    this.#socket = socket;
    socket.onmessage = (frame) => {
      const message = JSON.parse(String(frame.data)) as Message;
      if (message.type === "pong") this.#heard();
      else this.take(message);
    };
    socket.onclose = (event) => {
      if (this.#socket !== socket) return;
      this.#socket = null;
      // 4403 and 4404: the server will not change its mind about this page.
      if (event.code === 4403 || event.code === 4404) return this.#report("stale");
      this.#startPolling();
      this.#reconnectTimer = window.setTimeout(() => this.open(), backoffMs(this.#attempt++));
    };
  }

  close(): void {
    this.#closed = true;
    this.#stopPolling();
    this.#socket?.close();
    this.#socket = null;
  }

  /** Take one message, from the socket or from a poll. */
  take(message: Message): void {
    const verdict = this.#sequencer.judge(message);
    if (verdict === "gap") {
      if (this.#socket?.readyState === WebSocket.OPEN) {
        this.#socket.send(JSON.stringify({ type: "snapshot" }));
      } else void this.#poll();
      return;
    }
    this.#heard();
    if (verdict === "old") return;
    if (this.#socket?.readyState === WebSocket.OPEN) {
      this.#attempt = 0;
      this.#stopPolling();
      this.#report("live");
    }
    if (verdict === "snapshot") this.#options.onSnapshot(message);
    else this.#options.onEvent(message);
  }

  #heard(): void {
    this.#lastUpdateAt = Date.now();
  }

  #watch(): void {
    const silentMs = Date.now() - this.#lastUpdateAt;
    if (this.#socket?.readyState === WebSocket.OPEN) {
      if (silentMs > GIVE_UP_ON_SILENCE_MS) this.#socket.close();
      else this.#socket.send(JSON.stringify({ type: "ping" }));
    }
    if (silentMs > 15_000) this.#report("stale");
  }

  #startPolling(): void {
    if (this.#pollTimer !== undefined || this.#closed) return;
    this.#report("polling");
    this.#pollTimer = window.setInterval(
      () => void this.#poll(),
      this.#options.pollEveryMs ?? 4000,
    );
  }

  #stopPolling(): void {
    window.clearInterval(this.#pollTimer);
    this.#pollTimer = undefined;
  }

  async #poll(): Promise<void> {
    try {
      const reply = await fetch(this.#options.pollUrl, { headers: { Accept: "application/json" } });
      if (reply.ok) this.take((await reply.json()) as Message);
    } catch {
      // The network is away: the stale indicator already says so.
    }
  }

  #report(state: StreamState): void {
    this.#options.onState(state, this.#lastUpdateAt);
  }
}
