import { describe, expect, it } from "vitest";
import { backoffMs, Sequencer } from "../src/shared/socket";

describe("a stream", () => {
  it("takes a snapshot, then events in order, and drops what the snapshot held", () => {
    const stream = new Sequencer();
    expect(stream.judge({ type: "event", seq: 3 })).toBe("gap");
    expect(stream.judge({ type: "snapshot", seq: 5 })).toBe("snapshot");
    expect(stream.judge({ type: "event", seq: 4 })).toBe("old");
    expect(stream.judge({ type: "event", seq: 5 })).toBe("old");
    expect(stream.judge({ type: "event", seq: 6 })).toBe("event");
    expect(stream.last).toBe(6);
  });

  it("sees a gap, keeps its place, and goes on from the fresh snapshot", () => {
    const stream = new Sequencer();
    stream.judge({ type: "snapshot", seq: 1 });
    expect(stream.judge({ type: "event", seq: 3 })).toBe("gap");
    expect(stream.last).toBe(1);
    expect(stream.judge({ type: "snapshot", seq: 3 })).toBe("snapshot");
    expect(stream.judge({ type: "event", seq: 4 })).toBe("event");
  });

  it("passes over a snapshot older than what it has", () => {
    const stream = new Sequencer();
    stream.judge({ type: "snapshot", seq: 9 });
    expect(stream.judge({ type: "snapshot", seq: 8 })).toBe("old");
    expect(stream.last).toBe(9);
  });
});

describe("reconnecting", () => {
  it("waits longer each time, never over half a minute, never less than half a second", () => {
    expect(backoffMs(0, () => 0)).toBe(500);
    expect(backoffMs(0, () => 1)).toBe(1000);
    expect(backoffMs(3, () => 1)).toBe(8000);
    expect(backoffMs(40, () => 1)).toBe(30_000);
    expect(backoffMs(40, () => 0)).toBe(500);
  });
});
