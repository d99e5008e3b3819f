// BullMQ: the verbs of adapter.py, run as `node bullmq.cjs FOLDER VERB ...` where FOLDER has its packages.
'use strict';

const fs = require('fs');
const { createRequire } = require('module');
const path = require('path');

const [folder, verb, ...rest] = process.argv.slice(2);
const installed = createRequire(path.join(folder, 'package.json'));

const QUEUE = 'bench';
const CALLERS = 50;
const IN_A_CALL = 1000;
const FIRST = 50; // calls that are not measured
const PAYLOAD = 'x'.repeat(100);
const FLUSH = 5; // milliseconds between two writes of marks

const nanoseconds = () => BigInt(Math.round((performance.timeOrigin + performance.now()) * 1e3)) * 1000n;
const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));

function connection() {
  const { hostname, port } = new URL(process.env.PEERS_URL);
  return { host: hostname, port: Number(port), maxRetriesPerRequest: null };
}

// Marks are appended in blocks: a system call for each would cost a task a tenth of its time.
function marks() {
  const file = fs.openSync(path.join(process.env.PEERS_MARKS, `${process.pid}.marks`), 'w');
  let waiting = [];
  setInterval(() => {
    if (!waiting.length) return;
    const block = Buffer.alloc(waiting.length * 8);
    waiting.forEach((mark, index) => block.writeBigInt64LE(mark, index * 8));
    waiting = [];
    fs.writeSync(file, block);
  }, FLUSH);
  return (mark) => waiting.push(mark);
}

function work(slots) {
  const { Worker } = installed('bullmq');
  const mark = marks();
  const run = async (job) => {
    const now = nanoseconds();
    const latency = job.name === 'timed' ? now - BigInt(job.data.sent) : 0n;
    if (job.name !== 'timed') mark(now);
    else mark(latency > 0n ? latency : 1n);
  };
  const worker = new Worker(QUEUE, run, { connection: connection(), concurrency: slots });
  process.on('SIGTERM', () => worker.close(true).finally(() => process.exit(0)));
}

async function enqueue(queue, amount, gap) {
  const one = () => queue.add('noop', { payload: PAYLOAD });
  const many = (count) =>
    queue.addBulk(Array.from({ length: count }, () => ({ name: 'noop', data: { payload: PAYLOAD } })));
  if (verb === 'fill') {
    for (let left = amount; left > 0; left -= IN_A_CALL) await many(Math.min(left, IN_A_CALL));
    return {};
  }
  if (verb === 'pace') {
    for (let left = amount; left > 0; left--) {
      await queue.add('timed', { sent: nanoseconds().toString() });
      await pause(gap);
    }
    return {};
  }
  if (verb === 'bulk') await many(IN_A_CALL);
  else await Promise.all(Array.from({ length: FIRST }, one));
  const began = performance.now();
  const ends = began + amount * 1000;
  let tasks = 0;
  const lane = async () => {
    while (performance.now() < ends) {
      if (verb === 'bulk') await many(IN_A_CALL);
      else await one();
      tasks += verb === 'bulk' ? IN_A_CALL : 1;
    }
  };
  await Promise.all(Array.from({ length: verb === 'callers' ? CALLERS : 1 }, lane));
  return { tasks, seconds: (performance.now() - began) / 1000 };
}

async function main() {
  if (verb === 'version') {
    const of = (name) => `${name} ${installed(`./node_modules/${name}/package.json`).version}`;
    return { version: [of('bullmq'), of('ioredis'), `node ${process.versions.node}`].join(', ') };
  }
  if (verb === 'work') return work(Number(rest[0]));
  const { Queue } = installed('bullmq');
  const defaultJobOptions = { removeOnComplete: true, removeOnFail: true };
  const queue = new Queue(QUEUE, { connection: connection(), defaultJobOptions });
  await queue.waitUntilReady();
  const found = await enqueue(queue, Number(rest[0]), Number(rest[1] || 0));
  await queue.close();
  return found;
}

main().then((found) => {
  if (found) console.log(JSON.stringify(found));
});
