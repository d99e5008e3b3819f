// What is shown: rates, figures and a table for each read.

import { Bar, Sparkline } from "./drawings.js";
import { Shares } from "./shares.js";
import { Table, at, figure, make, nothing, set, tag, write } from "./table.js";
import { lasting, many, percent, perSecond, shown, text, total } from "./values.js";

const LONGEST_GAP = 10; // seconds between two reads of counters that make a rate
const MOST_RUNS = 5; // kinds of tasks that are named of one worker

const RATES = { submitted: "Submitted", completed: "Completed", failed: "Failed" };
const FIGURES = {
  ready: "Ready to run",
  running: "Running",
  later: "Due later",
  oldest: "Oldest ready",
  dead: "Dead letters",
  workers: "Workers",
};

const rates = {};
const figures = {};
const tables = {};

export function layOut() {
  for (const [kind, label] of Object.entries(RATES)) {
    const value = make("span", {}, "–");
    const line = new Sparkline();
    const said = make("p", {}, value, make("small", {}, "per second"));
    const box = make(
      "div",
      { class: "rate", "data-kind": kind },
      make("h3", {}, label),
      said,
      line.art,
    );
    at("rates").append(box);
    rates[kind] = { box, value, line };
  }
  for (const [kind, label] of Object.entries(FIGURES)) {
    const value = make("dd", {}, "–");
    const box = make("div", {}, make("dt", {}, label), value);
    figures[kind] = { value, box };
    at("figures").append(box);
  }
  for (const [name, { caption, empty, columns }] of Object.entries(TABLES)) {
    tables[name] = new Table(at(`${name}-table`), caption, empty, columns);
  }
}

// What the server does not have, or not for this token.
export function leaveOut(name) {
  const place = { stats: at("rates"), workers: figures.workers.box }[name];
  for (const each of [place, at(name)]) if (each) each.hidden = true;
}

function showFigure(kind, value, level = null) {
  write(figures[kind].value, value);
  set(figures[kind].box, { "data-level": level });
}

// -- tables

const column = (label, cell, className = null) => ({ label, cell, class: className });
const number = (label, cell) => column(label, cell, "n");
const counted = (label, field, level) => number(label, (row) => figure(row[field], level));
const ago = (time) => (time < 1 ? "now" : `${lasting(time)} ago`);
const known = (value, say) => (value === null ? nothing() : say(value));

const TABLES = {
  tenants: {
    caption: "Tenants: share of the starts against the fair share by weight, and waits",
    empty: "No tenant has work now, or had any in this hour or the last.",
    columns: [
      column("Tenant", (row) => row.name),
      column("Share against fair share", bar, "wide share"),
      column("Share", share, "n share"),
      column("Fair", (row) => known(row.fair, percent), "n share"),
      number("Weight", (row) => (row.weight === null ? "varies" : weight(row.weight))),
      counted("Ready", "ready"),
      counted("Running", "running"),
      number("Longest wait", (row) => known(row.wait, lasting)),
      column("Held by", held),
    ],
  },
  queues: {
    caption: "Queues: how many tasks are in each state, and how long the oldest has been waiting",
    empty: "There is no queue yet. The first task makes one.",
    columns: [
      column("Queue", (row) => (row.paused ? [row.name, " ", tag("paused", "warn")] : row.name)),
      counted("Ready", "ready"),
      number("Oldest", (row) => known(row.ready ? row.oldest : null, lasting)),
      counted("Running", "running"),
      counted("Due later", "later"),
      counted("Deferred", "deferred"),
      counted("Dead", "dead", "bad"),
    ],
  },
  workers: {
    caption: "Workers, and what each of them runs",
    empty: "No worker has been heard of in the last 15 seconds. Start one: fairlead worker APP",
    columns: [
      column("Worker", (row) => [row.host, make("span", { class: "sub mono" }, row.id)]),
      number("Slots", (row) => `${shown(row.running)} of ${shown(row.slots)}`),
      column("State", (row) => [tag(row.state, row.state === "working" ? "good" : "warn")]),
      number("Seen", (row) => known(row.seen, ago)),
      column("Queues", (row) => row.queues.join(", "), "text full"),
      column("Runs", runs, "full"),
    ],
  },
  dead: {
    caption: "Dead letters by error",
    empty: "None. Tasks that fail for good are kept here, by their error.",
    columns: [
      column("Error", (row) => withNote(row.error || "No error", row.message)),
      column("Task", (row) => row.task, "text full"),
      counted("Count", "count", "bad"),
      number("Last", (row) => known(row.last, ago)),
    ],
  },
  limiters: {
    caption: "Limiters and breakers: how much of each is used",
    empty: "None is set.",
    columns: [
      column("Limiter", (row) => row.name),
      counted("Used", "used"),
      counted("Tenants waiting", "waiting"),
      column("Breaker", breaker),
    ],
  },
  health: {
    caption: "Health of the broker",
    empty: "What was looked at is for operators.",
    columns: [
      column("What", (row) => row.name),
      column("State", (row) => [tag(row.status, LEVELS[row.status] ?? "warn")]),
      column(
        "Finding",
        (row) => withNote(row.text, row.status === "ok" ? "" : row.hint),
        "text full",
      ),
    ],
  },
};
const HEALTH = {
  ok: "is well",
  warn: "is worth a look",
  degraded: "is away: tasks are kept on disk",
  fail: "needs care",
};
const LEVELS = { ok: "good", warn: "warn", fail: "bad" };
const BREAKERS = {
  closed: ["closed", "good"],
  open: ["open", "bad"],
  half_open: ["half open", "warn"],
};

function withNote(main, note) {
  return note ? [main, make("span", { class: "sub text" }, note)] : [main];
}

function weight(value) {
  return String(Math.round(value * 1000) / 1000);
}

function share(row) {
  if (row.share === null) return nothing();
  return { parts: [percent(row.share)], level: row.short > 0 ? "warn" : null };
}

let whole = 1; // what fills a bar: the largest share or fair share of all rows
function bar(row, cell) {
  if (!cell.bar) {
    cell.bar = new Bar();
    cell.replaceChildren(cell.bar.art);
  }
  cell.bar.show(row.share, row.fair, row.short, whole);
}

function held(row) {
  return [...new Set(row.held)].slice(0, 3).map((each) => tag(each, "warn"));
}

function breaker(row) {
  if (!row.state) return nothing();
  const found = [tag(...(BREAKERS[row.state] ?? [row.state, "warn"]))];
  return row.until ? withNote(found[0], `for ${lasting(row.until)}`) : found;
}

function runs(row) {
  const kinds = Map.groupBy(row.runs, (name) => name);
  if (!kinds.size) return row.running ? many(row.running, "task") : nothing("nothing");
  const lines = [...kinds].slice(0, MOST_RUNS).map(([name, all]) => {
    const times = make("span", { class: "quiet" }, all.length > 1 ? ` × ${shown(all.length)}` : "");
    return make("li", { class: "text" }, name, times);
  });
  const others = kinds.size - lines.length;
  if (others > 0) lines.push(make("li", { class: "quiet" }, `and ${many(others, "other")}`));
  return [make("ul", { class: "runs" }, ...lines)];
}

// -- what each read shows; returns the names of reads that are worth doing again

let before = null; // the counters of the read before
let queues = { rows: [], more: false }; // of the last read, and what the stream told since
let drawn = null; // the frame in which that will be shown
let buried = 0; // dead letters at the read before
const shares = new Shares();

function showRates(found) {
  for (const [kind, { box, value, line }] of Object.entries(rates)) {
    box.hidden = found[kind] === null;
    if (box.hidden) continue;
    line.add(found[kind]);
    write(value, perSecond(line.calm));
  }
}

function showQueues({ rows, more }) {
  const sum = (field) => total(rows, (row) => row[field]);
  const ages = rows.filter((row) => row.ready && row.oldest !== null).map((row) => row.oldest);
  for (const field of ["ready", "running", "later"]) showFigure(field, shown(sum(field)));
  showFigure("oldest", ages.length ? lasting(Math.max(...ages)) : "–");
  showFigure("dead", shown(sum("dead")), sum("dead") ? "bad" : null);
  rows.sort((a, b) => b.ready - a.ready || compare(a.name, b.name));
  tables.queues.show(rows, more);
  write(at("queues-aside"), rows.length ? many(rows.length, "queue", more) : "");
}

export const SHOWS = {
  // Rates are differences of counters that only grow; one that shrank was begun anew.
  stats(found, now) {
    const read = { ...found, at: found.at ?? now };
    const since = before ? read.at - before.at : 0;
    const rate = (kind) =>
      found[kind] === null ? null : Math.max(0, (found[kind] - before[kind]) / since);
    // After a while in which the stream told them, the difference is not of now.
    if (since > 0 && since < LONGEST_GAP) {
      showRates(Object.fromEntries(Object.keys(RATES).map((kind) => [kind, rate(kind)])));
    }
    if (!before || since > 0) before = read;
  },

  metrics(found) {
    if (found.submitted !== null) showRates(found);
  },

  queues(found) {
    queues = found;
    showQueues(found);
    offer(found.rows);
    const before = buried;
    buried = total(found.rows, (row) => row.dead);
    return buried === before ? [] : ["dead"];
  },

  depth({ key, ...counts }) {
    const row = queues.rows.find((each) => each.key === key);
    if (!row) return queues.more ? [] : ["queues"];
    Object.assign(row, counts);
    // Those of many queues come at once, and are shown at once.
    drawn ??= requestAnimationFrame(() => {
      drawn = null;
      showQueues(queues);
    });
    return [];
  },

  tenants({ rows, queue, at: read, jain, more }, now) {
    const recent = shares.judge(rows, queue, read ?? now);
    // Those that wait for their part first: nobody should have to look for them.
    const first = (row) => (row.short > 0 ? 1 : 0);
    rows.sort((a, b) => first(b) - first(a) || b.share - a.share || compare(a.name, b.name));
    whole = Math.max(0.01, ...rows.map((row) => Math.max(row.share ?? 0, row.fair ?? 0)));
    tables.tenants.show(rows, more);
    // A tenant's own token tells of no other: there is nothing to compare.
    const compared = rows.some((row) => row.share !== null || row.fair !== null);
    at("tenants").classList.toggle("alone", !compared);
    const index = recent ? recent.jain : jain;
    const parts = [
      rows.length && many(rows.length, "tenant", more),
      recent && `${many(recent.starts, "start")} in ${lasting(recent.seconds)}`,
      compared && !recent && "starts of this hour and the last",
      index !== null && `Jain’s index ${index.toFixed(3)}, where 1 is fair`,
    ];
    write(at("tenants-aside"), parts.filter(Boolean).join(" · "));
  },

  workers({ rows, more }) {
    const sum = (field) => total(rows, (row) => row[field]);
    rows.sort((a, b) => compare(a.host, b.host) || compare(a.id, b.id));
    tables.workers.show(rows, more);
    showFigure("workers", shown(rows.length), rows.length ? null : "warn");
    const used = `${shown(sum("running"))} of ${many(sum("slots"), "slot")} in use`;
    write(at("workers-aside"), rows.length ? `${many(rows.length, "worker", more)}, ${used}` : "");
  },

  dead({ rows, examined, more }) {
    rows.sort((a, b) => b.count - a.count || compare(a.error, b.error));
    tables.dead.show(rows, more);
    const of = `among ${more ? "the first " : ""}${many(examined, "dead letter")}`;
    write(at("dead-aside"), rows.length ? `${many(rows.length, "kind")} ${of}` : "");
  },

  limiters({ rows, more }) {
    rows.sort((a, b) => compare(a.name, b.name));
    tables.limiters.show(rows, more);
    const open = rows.filter((row) => row.state === "open").length;
    write(at("limiters-aside"), open ? `${many(open, "breaker")} open` : "");
  },

  health({ rows, status }) {
    const worst = ["fail", "warn", "ok"];
    rows.sort((a, b) => worst.indexOf(a.status) - worst.indexOf(b.status));
    tables.health.show(rows, false);
    write(at("health-aside"), HEALTH[status] ?? "");
  },
};

function compare(a, b) {
  return a < b ? -1 : a > b ? 1 : 0;
}

// The queues whose tenants can be looked at: a share is one of a queue, so at first the busiest.
function offer(rows) {
  const choice = at("tenants-queue");
  const known = [...choice.options].map((each) => each.value);
  const names = rows.map((row) => row.key).sort(compare);
  at("tenants-choice").hidden = names.length < 2;
  if (JSON.stringify(known) === JSON.stringify(["", ...names])) return;
  const chosen = known.length > 2 ? choice.value : names.length > 1 ? rows[0].key : "";
  const options = names.map((name) => make("option", { value: name }, text(name)));
  choice.replaceChildren(make("option", { value: "" }, "all queues"), ...options);
  choice.value = names.includes(chosen) ? chosen : "";
}
