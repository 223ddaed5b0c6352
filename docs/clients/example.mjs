// Reserves ids from allocnode. npm install @nats-io/transport-node
//
//     node example.mjs HOST:PORT[,HOST:PORT...] SEQUENCE COUNT [KEY]
import { randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { connect } from "@nats-io/transport-node";

const again = new Set(["unavailable", "fenced", "unknown_outcome"]); // every other code is final

class Allocnode {
  cluster; // of the first answer: no other is believed
  seen = 0; // highest seq of any answer

  constructor(nc) {
    this.nc = nc;
  }

  // Resolves to the range [start, end) as BigInts: a number is exact up to 2^53 only.
  async reserve(sequence, count, key = randomBytes(16).toString("hex"), within = 60_000) {
    const body = JSON.stringify({ count, key, ids: "string", since: this.seen }); // the same bytes at each try
    const deadline = Date.now() + within;
    for (let attempt = 0, last; ; attempt++) {
      let answer = {};
      try {
        answer = (await this.nc.request(`alloc.reserve.${sequence}`, body, { timeout: 5000 })).json();
      } catch (err) {
        last = err; // no node serves, no answer in time, not JSON
      }
      // An answer with neither start nor error is that of a stream which captured the subject: it says nothing.
      if (answer.start !== undefined || answer.error !== undefined) {
        this.cluster ??= answer.cluster;
        if (answer.cluster !== undefined && answer.cluster !== this.cluster) {
          throw new Error(`another cluster answers: ${JSON.stringify(answer)}`);
        }
        if (answer.start !== undefined) {
          this.seen = Math.max(this.seen, answer.seq);
          return { start: BigInt(answer.start), end: BigInt(answer.end) };
        }
        last = new Error(`${answer.error.code}: ${answer.error.message}`);
        if (!again.has(answer.error.code)) throw last;
      }
      if (Date.now() > deadline) {
        throw new Error(`it may have happened; ask again with the key ${key}`, { cause: last });
      }
      await sleep((0.5 + Math.random() / 2) * Math.min(50 * 2 ** attempt, 2000));
    }
  }
}

const [servers, sequence, count, key] = process.argv.slice(2);
const nc = await connect({ servers: servers.split(",") });
const allocnode = new Allocnode(nc);
for (const k of [key, undefined]) { // one with the key that was given, one with a new one
  const { start, end } = await allocnode.reserve(sequence, Number(count), k);
  console.log(`${sequence}: ${start} to ${end - 1n}`);
}
await nc.close();
