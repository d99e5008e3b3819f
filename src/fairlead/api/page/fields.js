// From the API to the page: all that the page knows about routes and names of fields stands here.

import { age, ahead, amount, count, list, moment, part, text, texts, total } from "./values.js";

const MOST_TENANTS = 100; // that are read, those with most work first

// Rows have a `key` that tells them apart, however alike they look.
//
// What is read: the path below /api/v1, `every` so many seconds, on an event no sooner than after
// `least` of them, and how it becomes a view. A read of several `pages` goes on by the cursor.
export const READS = {
  stats: { path: () => "stats?limit=200", every: 2, view: viewStats },
  queues: { path: queuesPath, every: 4, pages: 5, view: viewQueues },
  tenants: { path: tenantsPath, every: 3, view: viewTenants },
  workers: { path: () => "workers?limit=200", every: 3, view: viewWorkers },
  dead: { path: deadPath, every: 30, least: 5, pages: 5, view: viewDead },
  limiters: { path: () => "limiters?limit=200", every: 5, view: viewLimiters },
  health: { path: () => "health", every: 10, view: viewHealth },
};

const HEARD = ["queue.depth", "system.metrics", "task.dead", "worker.*"];
export const EVENTS = `events?${new URLSearchParams({ types: HEARD.join(",") })}`;

// What an event of a type shows, and which reads it makes worth doing again.
export const HEARS = {
  "system.metrics": { shows: "metrics", view: viewMetrics },
  "queue.depth": { shows: "depth", view: viewDepth },
  "task.dead": { stirs: ["dead"] },
  "worker.joined": { stirs: ["workers"] },
  "worker.left": { stirs: ["workers"] },
  "worker.paused": { stirs: ["workers"] },
  "worker.resumed": { stirs: ["workers"] },
  "stream.gap": { stirs: ["queues", "tenants", "workers", "dead"] },
};

function viewMetrics(data) {
  return {
    submitted: amount(data.enqueued_per_second),
    completed: amount(data.completed_per_second),
    failed: amount(data.failed_per_second),
  };
}

function viewDepth(data) {
  return { key: String(data.queue), ...viewCounts(data) };
}

function viewCounts(counts) {
  return {
    ready: count(counts.ready),
    later: count(counts.scheduled) + count(counts.retrying),
    deferred: count(counts.deferred),
    running: count(counts.running),
    dead: count(counts.dead),
  };
}

// Counters of all queues since they exist; rates are their differences.
function viewStats(answer) {
  const found = list(answer.queues);
  const sum = (field) => total(found, (queue) => count(queue[field]));
  const told = found.some((queue) => amount(queue.failed) !== null);
  return {
    at: moment(answer.now),
    submitted: sum("enqueued"),
    completed: sum("completed"),
    failed: told || !found.length ? sum("failed") : null, // a tenant is not told
  };
}

function queuesPath(_queue, cursor) {
  return `queues?${new URLSearchParams(cursor ? { limit: 200, cursor } : { limit: 200 })}`;
}

function viewQueues(answer, now, before) {
  const found = list(answer.queues).map((queue) => ({
    key: String(queue.name),
    name: text(queue.name),
    paused: queue.paused === true,
    ...viewCounts(queue),
    oldest: amount(queue.oldest_seconds) ?? age(queue.oldest_at, now),
  }));
  const rows = [...(before?.rows ?? []), ...found];
  return { rows, more: Boolean(answer.cursor) };
}

// Of one queue, or of all if it is empty.
function tenantsPath(queue) {
  const asked = { sort: "depth", limit: MOST_TENANTS };
  return `tenants?${new URLSearchParams(queue ? { ...asked, queue } : asked)}`;
}

function viewTenants(answer) {
  const rows = list(answer.tenants).map((tenant) => ({
    key: String(tenant.tenant),
    name: text(tenant.tenant),
    weight: amount(tenant.weight),
    started: count(tenant.started),
    share: part(tenant.share),
    fair: part(tenant.fair_share),
    ready: count(tenant.ready),
    running: count(tenant.in_flight),
    wait: amount(tenant.longest_wait),
    held: list(tenant.throttled).map(({ by, limiter }) =>
      by === "tenant" ? "own limit" : text(by === "limiter" ? limiter : by),
    ),
  }));
  return {
    at: moment(answer.now),
    queue: texts(answer.queues).length === 1 ? texts(answer.queues)[0] : null,
    rows,
    jain: part(answer.jain),
    more:
      rows.length >= MOST_TENANTS || answer.more_tenants === true || answer.more_queues === true,
  };
}

function viewWorkers(answer, now) {
  const rows = list(answer.workers).map((worker) => ({
    key: String(worker.id),
    id: text(worker.id),
    host: text(worker.host),
    state: text(worker.state),
    queues: texts(worker.queues),
    running: Math.min(count(worker.running), count(worker.concurrency)), // without what is on its way
    slots: count(worker.concurrency),
    runs: list(worker.now).map((task) => text(task.name || task.id)),
    seen: age(worker.seen_at, now),
  }));
  return { rows, more: Boolean(answer.cursor) };
}

function deadPath(_queue, cursor) {
  return `dead-letters/groups${cursor ? `?${new URLSearchParams({ cursor })}` : ""}`;
}

// Each page has the groups of what it looked at: the same group may be in several.
function viewDead(answer, now, before) {
  const groups = new Map((before?.rows ?? []).map((row) => [row.key, row]));
  for (const group of list(answer.groups)) {
    const key = String(group.group);
    const same = groups.get(key);
    const last = age(group.newest_at, now);
    groups.set(key, {
      key,
      error: text(group.error_type),
      message: text(group.message),
      task: text(group.task),
      count: count(group.count) + (same?.count ?? 0),
      last: same ? Math.min(same.last ?? Infinity, last ?? Infinity) : last,
    });
  }
  const examined = count(answer.examined) + (before?.examined ?? 0);
  return { rows: [...groups.values()], examined, more: Boolean(answer.cursor) };
}

function viewLimiters(answer, now) {
  const rows = list(answer.limiters).map((limiter) => ({
    key: String(limiter.name),
    name: text(limiter.name),
    used: count(limiter.used),
    waiting: count(limiter.waiting),
    state: text(Object(limiter.breaker).state),
    until: ahead(Object(limiter.breaker).open_until, now),
  }));
  return { rows, more: Boolean(answer.cursor) };
}

function viewHealth(answer) {
  const rows = list(answer.findings).map((finding) => ({
    key: JSON.stringify([finding.name, finding.text]),
    name: text(finding.name),
    status: text(finding.status),
    text: text(finding.text),
    hint: text(finding.hint),
  }));
  return { rows, status: text(answer.status) };
}
