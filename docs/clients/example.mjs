// Reserves ids from allocnode. npm install @nats-io/transport-node
//
//     node example.mjs HOST:PORT[,HOST:PORT...] SEQUENCE COUNT [BODY]
//
// It prints each request's body before it sends it: a program stores it there. With BODY, one that was stored, it sends
// that first: it is answered with the range that it was given, if it was given one.
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

  // Resolves to the answer that has the field wanted.
  async ask(subject, body, wanted, within = 60_000) {
    const deadline = Date.now() + within;
    for (let attempt = 0, last; ; attempt++) {
      let answer = {};
      try {
        answer = (await this.nc.request(subject, body, { timeout: 5000 })).json(); // the same bytes at each try
      } catch (err) {
        last = err; // no node serves, no answer in time, not JSON
      }
      // An answer with neither of the two is that of a stream which captured the subject: it says nothing.
      if (answer[wanted] !== undefined || answer.error !== undefined) {
        this.cluster ??= answer.cluster;
        if (answer.cluster !== undefined && answer.cluster !== this.cluster) {
          throw new Error(`another cluster answers: ${JSON.stringify(answer)}`);
        }
        if (answer[wanted] !== undefined) {
          this.seen = Math.max(this.seen, answer.seq);
          return answer;
        }
        last = new Error(`${answer.error.code}: ${answer.error.message}`);
        if (!again.has(answer.error.code)) throw last;
      }
      if (Date.now() > deadline) {
        throw new Error(`it may have happened; ask again with ${body}`, { cause: last });
      }
      await sleep((0.5 + Math.random() / 2) * Math.min(50 * 2 ** attempt, 2000));
    }
  }

  // Resolves to the body of a new reservation. Store it before the first send, and send that again after a crash.
  async prepare(count) {
    if (this.seen === 0) { // since 0 is none: then a key that the cluster has forgotten would be taken for a new one
      await this.ask("alloc.list", '{"limit":1}', "sequences");
    }
    return JSON.stringify({ count, key: randomBytes(16).toString("hex"), ids: "string", since: this.seen });
  }

  // Resolves to the range [start, end) of a body that prepare has made, in this process or in one before. Its ends are
  // BigInts: a number is exact up to 2^53 only.
  async reserve(sequence, body) {
    const answer = await this.ask(`alloc.reserve.${sequence}`, body, "start");
    return { start: BigInt(answer.start), end: BigInt(answer.end) };
  }
}

const [servers, sequence, count, ...stored] = process.argv.slice(2);
const nc = await connect({ servers: servers.split(",") });
const allocnode = new Allocnode(nc);
for (let body of [...stored, undefined]) { // what was stored, then one more
  body ??= await allocnode.prepare(Number(count));
  console.log(`${sequence}: sending ${body}`);
  const { start, end } = await allocnode.reserve(sequence, body);
  console.log(`${sequence}: ${start} to ${end - 1n}`);
}
await nc.close();
