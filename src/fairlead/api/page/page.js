// The status page. It holds no data of its own: it reads the API with the token that this tab
// keeps, shows every text as text, and changes nothing.

import { SHOWS, layOut, leaveOut } from "./board.js";
import {
  Refusal,
  hasToken,
  keepToken,
  listen,
  read,
  rest,
  serverTime,
  signInWith,
  takeCode,
} from "./connection.js";
import { EVENTS, HEARS, READS } from "./fields.js";
import { at, set, write } from "./table.js";
import { clock, lasting } from "./values.js";

const STALE = 12; // seconds without an answer after which the page says so
const TICK = 0.5; // seconds between two looks at what is due
const LONGEST_WAIT = 60; // seconds between two attempts, however long the trouble lasts
const LONGEST_AWAY = 10; // the same while the server answers that the broker does not

const WHY = {
  none: "This server shows what goes on to those with a token that has the scope “read”.",
  unknown:
    "The server does not know this token: it is mistyped, revoked or past its expiry. " +
    "Give another one.",
  scope: "This token lacks the scope “read”, which this page needs. Give one that has it.",
  link:
    "This link was used already, or is too old: each signs in once. Make another with " +
    "“fairlead token link”, or give a token.",
  form: "A token is one word of letters, digits and signs, such as fl_…",
  storage: "This browser keeps nothing for a tab. Allow session storage for this server.",
};

// -- what the reader is told: the worst thing that is true now

const status = {
  signedOut: false,
  paused: false,
  trouble: null, // {kind, message, since}
  answered: 0, // when something was last read; 0: never
  live: false, // whether the stream of events is open
};

function troubled(kind, message = "") {
  const since = status.trouble?.kind === kind ? status.trouble.since : Date.now() / 1000;
  status.trouble = { kind, message, since };
}

function told() {
  if (status.signedOut) return { level: "idle", short: "Waits for a token" };
  if (status.paused) return { level: "warn", short: "Paused" };
  if (status.trouble) {
    const { kind, message } = status.trouble;
    const since = clock(status.trouble.since);
    if (kind === "broker") {
      const known = status.answered ? " The tables show what was last known." : "";
      const long = `The broker has been away since ${since}.${known}`;
      return { level: "bad", short: `Broker away since ${since}`, long };
    }
    if (kind === "server") {
      const long = "This page cannot reach its server. It goes on trying.";
      return { level: "bad", short: `Server away since ${since}`, long };
    }
    if (kind === "busy") return { level: "warn", short: "Told to ask less often" };
    return { level: "bad", short: `Trouble since ${since}`, long: message };
  }
  if (!status.answered) return { level: "idle", short: "Starting" };
  return { level: "good", short: status.live ? "Live" : "Reads every few seconds" };
}

function showStatus() {
  const silent = status.answered ? Math.floor(Date.now() / 1000 - status.answered) : 0;
  const stale = silent >= STALE && !status.signedOut;
  const now = told();
  if (stale && now.level === "good") Object.assign(now, { level: "warn", short: "No answer" });
  set(at("state"), { "data-level": now.level });
  write(at("state-text"), now.short);
  write(at("state-age"), stale ? `· stale for ${lasting(silent)}` : "");
  at("board").classList.toggle("aged", stale && status.trouble !== null);
  // A live region: it changes with the state, not with the seconds.
  set(at("notice"), { "data-level": now.level });
  write(at("notice"), now.long ?? "");
}

// -- the token

function signIn(why) {
  stop();
  status.signedOut = true;
  status.trouble = null;
  at("board").replaceChildren(); // what another token showed
  for (const id of ["board", "forget", "pause"]) at(id).hidden = true;
  at("sign-in").hidden = false;
  write(at("sign-in-why"), why);
  at("token").focus();
  showStatus();
}

// A link signs in before anything is read. One that was used does no harm to a tab that has a token.
async function useLink() {
  const code = takeCode();
  if (code === null) return;
  const good = await signInWith(code).catch(() => false);
  if (!good && !hasToken()) signIn(WHY.link);
  else if (status.signedOut) location.reload(); // something was read before the token was there
}

function signedIn(event) {
  event.preventDefault();
  const value = at("token").value.trim();
  at("token").value = "";
  if (!/^[\x21-\x7e]{1,512}$/.test(value)) write(at("sign-in-why"), WHY.form);
  else if (keepToken(value)) location.reload();
  else write(at("sign-in-why"), WHY.storage);
}

// -- reading: what is due, one after the other, and nothing while nobody looks

let running = null; // the AbortController of all that goes on
let waits = 0; // seconds until the next attempt after trouble
const due = {}; // when each is read next
const seen = {}; // when each was read last

function start() {
  if (running || status.paused || status.signedOut || document.hidden) return;
  running = new AbortController();
  for (const name of Object.keys(READS)) if (due[name] !== Infinity) due[name] = 0;
  rounds(running.signal);
  listen(EVENTS, running.signal, hear, (open) => {
    status.live = open;
  });
}

function stop() {
  running?.abort();
  running = null;
  status.live = false;
}

function hear(type, data) {
  const { shows, view, stirs } = HEARS[type] ?? {};
  if (shows) hasten(SHOWS[shows](view(data)));
  hasten(stirs);
  // The stream tells the rates: they are read only where it does not.
  if (shows === "metrics") due.stats = Date.now() / 1000 + 3 * READS.stats.every;
}

// Read sooner what has changed; what changes all the time is read now and then.
function hasten(names = []) {
  const now = Date.now() / 1000;
  for (const name of names) {
    const soonest = Math.max(now, (seen[name] ?? 0) + (READS[name].least ?? 1));
    if (due[name] !== Infinity) due[name] = Math.min(due[name], soonest);
  }
}

async function rounds(signal) {
  while (!signal.aborted) {
    for (const name of Object.keys(READS)) {
      if (due[name] <= Date.now() / 1000 && !(await readOne(name, signal))) break;
    }
    if (signal.aborted) return;
    showStatus();
    await rest(signal, status.trouble ? waits * (0.75 + Math.random() / 2) : TICK);
  }
}

// Returns whether to go on with the others.
async function readOne(name, signal) {
  let found;
  try {
    found = await readPages(READS[name], signal);
  } catch (error) {
    return !signal.aborted && refused(error, name);
  }
  if (signal.aborted) return false;
  seen[name] = status.answered = Date.now() / 1000;
  due[name] = seen[name] + READS[name].every;
  status.trouble = null;
  waits = 0;
  try {
    hasten(SHOWS[name](found, serverTime()));
  } catch (error) {
    console.error(error); // one table that cannot be shown is no reason to stop the others
  }
  return true;
}

async function readPages({ path, pages = 1, view }, signal) {
  let answer, found;
  for (let page = 0; page < pages && (page === 0 || answer.cursor); page += 1) {
    answer = await read(path(at("tenants-queue").value, answer?.cursor), signal);
    found = view(answer, serverTime(), found);
  }
  return found;
}

function refused(error, name) {
  const code = error instanceof Refusal ? error.status : 0;
  if (code === 401) {
    const why = hasToken() ? WHY.unknown : WHY.none;
    keepToken(null);
    signIn(why);
    return false;
  }
  if (code === 403 && error.field === "scope") {
    keepToken(null);
    signIn(WHY.scope);
    return false;
  }
  if (code === 404 && name === "tenants" && at("tenants-queue").value) {
    at("tenants-queue").value = ""; // the queue has gone: those of all
    return true;
  }
  if (code === 404 || (code === 403 && error.field === "tenant")) {
    // Not for this token, or not on this server: the rest of the page is as good.
    due[name] = Infinity;
    leaveOut(name);
    return true;
  }
  if (code === 503 && name !== "queues") {
    // A read that took too long, or the broker is away: the next of the queues tells which.
    due[name] = Date.now() / 1000 + Math.max(READS[name].every, error.after);
    due.queues = 0;
    return true;
  }
  if (code === 0 || error.type.endsWith("/draining")) troubled("server");
  else if (code === 503) troubled("broker");
  else if (code === 429) troubled("busy");
  else troubled("other", error.message);
  const longest = code === 503 ? LONGEST_AWAY : LONGEST_WAIT;
  waits = Math.max(error.after ?? 0, Math.min(longest, Math.max(1, waits * 2)));
  showStatus();
  return false;
}

// -- the start

function pause() {
  status.paused = !status.paused;
  set(at("pause"), { "aria-pressed": status.paused });
  if (status.paused) stop();
  else start();
  showStatus();
}

layOut();
at("sign-in-form").addEventListener("submit", signedIn);
at("pause").addEventListener("click", pause);
at("tenants-queue").addEventListener("change", () => {
  due.tenants = 0;
});
at("forget").addEventListener("click", () => {
  keepToken(null);
  location.reload();
});
// Coming back to the tab goes on, unless the reader paused the page.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) stop();
  else start();
  showStatus();
});
// In a tab that is open already the browser only changes the address.
addEventListener("hashchange", () => {
  if (location.hash.startsWith("#sign-in=")) location.reload();
});
at("board").hidden = false;
setInterval(showStatus, 1000);
showStatus();
await useLink();
at("forget").hidden = !hasToken();
start();
