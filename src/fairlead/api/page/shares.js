// What tenants of one queue got in the last minute, against what is fair.

import { total } from "./values.js";

const WINDOW = 60; // seconds
const LEAST = 10; // starts in the window; of fewer, a part says nothing
const LITTLE = 0.02; // of all: a tenant that is short of less than this is not marked

// The API tells the shares of two hours, in which one who came a minute ago has a small one however
// well it is served. So the page keeps its reads of a minute and compares.
export class Shares {
  constructor() {
    this.reads = []; // {at, queue, rows by key}, the oldest first
  }

  // Sets `share`, `fair` and `short` of each row. Returns what that is about, or null if shares are
  // those of the API.
  judge(rows, queue, at) {
    const last = this.reads.at(-1);
    if (last && (last.queue !== queue || last.at > at)) this.reads = [];
    while (this.reads.length > 1 && this.reads[1].at <= at - WINDOW) this.reads.shift();
    const first = this.reads[0];
    const begun = rows.map((row) => begunSince(first, row));
    const all = total(begun, Number);
    const recent = queue !== null && all >= LEAST;
    const wanting = (row) =>
      row.ready > 0 && this.reads.every((read) => read.rows.get(row.key)?.ready);
    if (recent) {
      rows.forEach((row, index) =>
        Object.assign(row, { share: begun[index] / all, wants: wanting(row) }),
      );
      divide(rows);
    }
    for (const row of rows) {
      const short = recent && row.wants ? row.fair - row.share : 0;
      row.short = short > LITTLE ? short : 0;
    }
    const kept = new Map(rows.map(({ key, started, ready }) => [key, { started, ready }]));
    this.reads.push({ at, queue, rows: kept });
    if (!recent) return null;
    return { starts: all, seconds: at - first.at, jain: jain(rows.filter((row) => row.wants)) };
  }
}

// The counter is of this hour and the one before: when the hour turns, it shrinks.
function begunSince(read, row) {
  const before = read?.rows.get(row.key);
  return before ? Math.max(0, row.started - before.started) : 0;
}

// Divide the whole by weight. One who did not want more all the time is fairly served with what it
// got, unless that is above its part, and leaves the rest to the others.
function divide(rows) {
  let open = rows.filter((row) => row.wants || row.share > 0);
  let left = 1;
  for (const row of rows) row.fair = 0;
  for (;;) {
    const weights = total(open, (row) => row.weight ?? 1);
    const level = weights > 0 ? left / weights : 0;
    const content = open.filter((row) => !row.wants && row.share <= level * (row.weight ?? 1));
    if (!content.length || content.length === open.length) {
      for (const row of open) row.fair = level * (row.weight ?? 1);
      return;
    }
    for (const row of content) {
      row.fair = row.share;
      left -= row.share;
    }
    open = open.filter((row) => !content.includes(row));
  }
}

// Jain's index: 1 if all got the same for their weights; of one alone there is none.
function jain(rows) {
  const got = rows.map((row) => row.share / (row.weight || 1));
  const squares = total(got, (each) => each ** 2);
  return rows.length > 1 && squares > 0 ? total(got, Number) ** 2 / (rows.length * squares) : null;
}
