/** Buys a job with a client that openapi-typescript made of docs/api/market.json.
 *
 * Prints one JSON object. Somebody else does the work: it follows the job to its end.
 */
import { readFile } from "node:fs/promises";
import createClient from "openapi-fetch";
import type { paths } from "./generated/market.js";

const [, , baseUrl = "", key = "", file = ""] = process.argv;
const market = createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${key}` } });

function need<T>(found: { data?: T; error?: unknown; response: Response }): T {
  if (found.data === undefined) {
    throw new Error(`${found.response.status}: ${JSON.stringify(found.error)}`);
  }
  return found.data;
}

const zones = need(await market.GET("/api/zones"));
const zone = zones.data[0]?.name ?? "";

const form = new FormData();
form.set("file", new Blob([await readFile(file)]), "rows.jsonl");
form.set("zone", zone);
// What fetch sends as a form, TypeScript knows only as its members.
const sent = form as unknown as { file: string; zone: string };
const stored = need(
  await market.POST("/api/datasets", { body: sent, bodySerializer: (body) => body as never }),
);

const work = { zone, dataset_id: stored.id, deadline: "5m" };
const training = { epochs: 1, batch_size: 8 };
const quote = need(await market.POST("/api/quotes", { body: { ...work, training } }));
const refusedQuote = await market.POST("/api/quotes", {
  body: { ...work, deadline: "2020-01-01T00:00:00Z", training },
});
const none = need(
  await market.POST("/api/quotes", { body: { ...work, training: { epochs: 50, batch_size: 1 } } }),
);

const lost = await market.POST("/api/bids", { body: { ...work, training, price: "0.000001" } });
const idempotent = { params: { header: { "Idempotency-Key": "typescript" } } };
const bid = { ...work, training, price: "5.00" };
const won = need(await market.POST("/api/bids", { body: bid, ...idempotent }));
const again = need(await market.POST("/api/bids", { body: bid, ...idempotent }));

const jobId = won.job_id ?? "";
const path = { job_id: jobId };
console.error(`waiting for ${jobId}`);
let job = need(await market.GET("/api/jobs/{job_id}", { params: { path } }));
for (let look = 0; look < 600 && job.status !== "succeeded"; look++) {
  await new Promise((resolve) => setTimeout(resolve, 100));
  job = need(await market.GET("/api/jobs/{job_id}", { params: { path } }));
}
const events = need(
  await market.GET("/api/jobs/{job_id}/events", { params: { path, query: { limit: 100 } } }),
);
const adapter = need(
  await market.GET("/api/jobs/{job_id}/adapter", { params: { path }, parseAs: "arrayBuffer" }),
) as unknown as ArrayBuffer;

console.log(
  JSON.stringify({
    rows: "rows" in stored ? stored.rows : null,
    quoted: Number(quote.posted_price) > 0,
    refused_quote: [refusedQuote.response.status, refusedQuote.error?.code],
    no_plan: [none.posted_price, none.price_parts, none.reason],
    lost: [lost.response.status, lost.error && "code" in lost.error ? lost.error.code : null],
    again: again.id === won.id,
    job: jobId,
    status: job.status,
    first_event: events.data[0]?.kind,
    adapter: Buffer.from(adapter).toString(),
  }),
);
