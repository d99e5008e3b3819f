// The connection: the token of this tab, requests to the API, and the stream of events.

import { text } from "./values.js";

const BASE = new URL("../", import.meta.url); // wherever the API is mounted
const KEPT = `fairlead-token ${BASE.pathname}`; // in the session storage, which ends with the tab
const LONGEST_EVENT = 1e6; // characters

let token = recalled();
let skew = 0; // seconds that the server's clock is ahead of this one
let last = null; // the id of the last event

function recalled() {
  try {
    return sessionStorage.getItem(KEPT);
  } catch {
    return null; // a browser that keeps nothing
  }
}

export const hasToken = () => token !== null;
export const serverTime = () => Date.now() / 1000 + skew;

// Returns whether the tab keeps it, also when the page is loaded again.
export function keepToken(value) {
  token = value;
  try {
    if (value === null) sessionStorage.removeItem(KEPT);
    else sessionStorage.setItem(KEPT, value);
  } catch {
    return false;
  }
  return true;
}

// What a server answered instead of what was asked for.
export class Refusal extends Error {
  constructor(status, problem, after) {
    super(text(problem.detail || problem.title || `the server answered ${status}`));
    this.status = status;
    this.type = text(problem.type);
    this.field = text(problem.field);
    this.after = after; // seconds; 0: the server did not say
  }
}

// Raises Refusal, and whatever fetch raises when there is no answer.
async function ask(path, accept, signal, headers = {}) {
  const answer = await fetch(new URL(path, BASE), {
    headers: {
      accept,
      ...(token === null ? {} : { authorization: `Bearer ${token}` }),
      ...headers,
    },
    cache: "no-store",
    credentials: "same-origin",
    redirect: "error",
    referrerPolicy: "no-referrer",
    signal,
  });
  // The header has whole seconds: less than two of difference are none.
  const ahead = (Date.parse(answer.headers.get("date") ?? "") - Date.now()) / 1000;
  if (!Number.isNaN(ahead)) skew = Math.abs(ahead) < 2 ? 0 : ahead;
  if (answer.ok) return answer;
  let problem = {};
  try {
    problem = Object(await answer.json());
  } catch {
    // No document, or one cut short: the status says enough.
  }
  const after = Number(answer.headers.get("retry-after"));
  throw new Refusal(answer.status, problem, after > 0 ? Math.min(after, 120) : 0);
}

// The code of a link that signs in once, taken out of the address: it is in no history after that.
export function takeCode() {
  const found = /^#sign-in=([\w-]{1,200})$/.exec(location.hash);
  if (found) history.replaceState(null, "", location.pathname + location.search);
  return found ? found[1] : null;
}

// Returns whether the code was good for a token that this tab keeps.
export async function signInWith(code) {
  const answer = await fetch(new URL("sign-in", BASE), {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ code }),
    cache: "no-store",
    credentials: "same-origin",
    redirect: "error",
    referrerPolicy: "no-referrer",
    signal: AbortSignal.timeout(10_000),
  });
  return answer.ok && keepToken(text(Object(await answer.json()).token));
}

export async function read(path, signal) {
  const soon = AbortSignal.any([signal, AbortSignal.timeout(10_000)]);
  const answer = await ask(`api/v1/${path}`, "application/json", soon);
  return Object(await answer.json());
}

export function rest(signal, seconds) {
  return new Promise((resolve) => {
    const timer = setTimeout(done, seconds * 1000);
    function done() {
      clearTimeout(timer);
      signal.removeEventListener("abort", done);
      resolve();
    }
    signal.addEventListener("abort", done);
  });
}

// Server-sent events, read by fetch: an EventSource cannot send a token but in the address.
// Goes on from the last event after each break, until the signal.
export async function listen(path, signal, onEvent, onState) {
  let pause = 1;
  while (!signal.aborted) {
    // However the reading ends, so does the connection: a browser has few for one server.
    const reading = new AbortController();
    try {
      const since = last === null ? {} : { "last-event-id": last };
      const both = AbortSignal.any([signal, reading.signal]);
      const answer = await ask(path, "text/event-stream", both, since);
      onState(true);
      pause = 1;
      await follow(answer.body.getReader(), onEvent);
    } catch (error) {
      if (signal.aborted) return;
      pause = Math.max(pause, error.after ?? 0);
      if (error instanceof Refusal && error.status < 500 && error.status !== 429) {
        if (last === null) return; // not for us, or not at all: the tables are read all the same
        last = null;
      }
    } finally {
      reading.abort();
    }
    onState(false);
    await rest(signal, pause * (0.75 + Math.random() / 2));
    pause = Math.min(30, pause * 2);
  }
}

async function follow(reader, onEvent) {
  const decoder = new TextDecoder();
  let held = "";
  while (held.length < LONGEST_EVENT) {
    const { done, value } = await reader.read();
    if (done) return;
    held += decoder.decode(value, { stream: true }).replaceAll("\r", "");
    const events = held.split("\n\n");
    held = events.pop();
    for (const event of events) take(event, onEvent);
  }
}

function take(event, onEvent) {
  let data = "";
  for (const line of event.split("\n")) {
    if (line.startsWith("data:")) data += line.slice(5).trimStart();
    else if (line.startsWith("id:")) last = line.slice(3).trim() || null;
  }
  if (!data) return; // a comment that keeps the connection open
  try {
    const found = Object(JSON.parse(data));
    onEvent(text(found.type), Object(found.data));
  } catch (error) {
    console.error(error); // one event that cannot be shown is no reason to leave the stream
  }
}
