"""Ways to spoil the shard of ``sample``, each with what the audit has to say of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.broker.redis.sample import DONE, MADE, TOO, Spoiler
from tests.broker.redis.spoiled_counters import COUNTED
from tests.broker.redis.spoiled_flows import SPOILED_FLOWS

__all__ = ("EXPIRES", "SPOILED", "Spoil")

Spoil = Callable[[Spoiler], Any]

SENTINEL = "~" * 80
# Where numbers stand in what is stored: see lua/lib/task, limits and queue.
STATE, TOKEN, DUE, EXPIRES, LIFE, SIZE, EXTRA = 0, 12, 28, 52, -12, -8, -4
LENGTH, SPECIAL, TAG, STATUS, PAUSE, GATED, BUSY = 32, 48, 52, 64, 66, 67, 68
COOLDOWN, PROBES, OPENED_AFTER, PROBING = 52, 60, 84, 92
WEIGHT, COUNTS, DONE_BYTES, DEAD_BYTES = 8, 16, 73, 81

SPOILED: dict[str, tuple[Spoil, str]] = {
    # -- tasks -----------------------------------------------------------------------------
    "no message": (
        lambda s: s.do("HDEL", "tasks", "running"),
        "task running has a record but no message",
    ),
    "no record": (
        lambda s: s.do("HDEL", "records", "running"),
        "task running is queued but stands 0 times in lines",
    ),
    "no task": (
        lambda s: (s.do("HDEL", "tasks", "scheduled"), s.do("HDEL", "records", "scheduled")),
        "'asleep:default:a' holds scheduled, which is not one of its tasks",
    ),
    "garbage for a message": (
        lambda s: s.do("HSET", "tasks", "chosen", "?"),
        "'tasks' holds what cannot be read for 'chosen'",
    ),
    "garbage for a record": (
        lambda s: s.do("HSET", "records", "running", "?"),
        "'records' holds what cannot be read for 'running'",
    ),
    "a state that there is not": (
        lambda s: s.poke("records", "running", STATE, "B", 9),
        "'records' holds what cannot be read for 'running'",
    ),
    "a record of another life": (
        lambda s: s.poke("records", "running", LIFE, "I", 0),
        "task running has a record that belongs to another message",
    ),
    "a life that was never given": (
        lambda s: s.number("life", 1),
        "task running has a life that was never given",
    ),
    "a wrong size": (
        lambda s: s.poke("records", "running", SIZE, "I", 7),
        "task running has 1 bytes, its record says 7",
    ),
    "wrong bytes of parts": (
        lambda s: s.poke("records", "running", EXTRA, "I", 7),
        "task running counts 7 bytes of parts, there are 8",
    ),
    "no result": (
        lambda s: s.do("HDEL", "results", DONE),
        f"task {DONE} has no results, its record says otherwise",
    ),
    "a part too many": (
        lambda s: s.do("HSET", "checkpoints", DONE, "?"),
        f"task {DONE} has checkpoints, its record says otherwise",
    ),
    "a part of nobody": (
        lambda s: s.do("HSET", "progress", "nobody", "?"),
        "'progress' holds something of nobody, which no longer exists",
    ),
    # -- places ----------------------------------------------------------------------------
    "out of its line": (
        lambda s: s.do("LREM", "line:default:2:q", 1, MADE),
        f"task {MADE} is queued but stands 0 times in lines",
    ),
    "twice in its line": (
        lambda s: s.do("RPUSH", "line:default:2:q", MADE),
        f"task {MADE} is queued but stands 2 times in lines",
    ),
    "in the line of another": (
        lambda s: (
            s.do("LREM", "line:default:2:q", 1, MADE),
            s.do("RPUSH", "line:default:2:t", MADE),
        ),
        f"task {MADE} stands in the line 'default:2:t', which is not its own",
    ),
    "a line that is shorter than it should be": (
        lambda s: s.do("RPOP", "line:default:3:q"),
        "the line 'default:3:q' has 0 entries, its tenant says 1",
    ),
    "a line that is longer": (
        lambda s: s.do("RPUSH", "line:default:3:q", "hole"),
        "the line 'default:3:q' has 2 entries, its tenant says 1",
    ),
    "a line of nobody": (
        lambda s: s.do("RPUSH", "line:default:3:nobody", "hole"),
        "the line 'default:3:nobody' belongs to no tenant",
    ),
    "not due": (
        lambda s: s.do("ZREM", "due", "default\x1fa"),
        "'due' has tenant a of default looked at None, its next task is due at",
    ),
    "due at another time": (
        lambda s: s.poke("records", "scheduled", DUE, "d", 5.0),
        "task scheduled is scheduled but will not be looked at when it is due",
    ),
    "due though it runs": (
        lambda s: s.do("ZADD", "due", 1, "default\x1fq"),
        "'due' holds tenant q of default, of which nothing is due",
    ),
    "due while it waits for others": (
        lambda s: s.do("ZADD", "asleep:default:a", 1, "deferred"),
        "task deferred is deferred but stands where scheduled tasks are",
    ),
    "looked at too late": (
        lambda s: s.do("ZADD", "due", 9e15, "default\x1fa"),
        "'due' has tenant a of default looked at",
    ),
    "a deadline that nobody watches": (
        lambda s: s.do("ZREM", "deadlines", "in-time"),
        "task in-time is queued but its deadline is not watched as it should be",
    ),
    "a deadline of a task without one": (
        lambda s: s.do("ZADD", "deadlines", 1, "chosen"),
        "task chosen is queued but its deadline is still watched",
    ),
    "a deadline of nobody": (
        lambda s: s.do("ZADD", "deadlines", 1, "nobody"),
        "'deadlines' holds nobody, which no longer exists",
    ),
    "asleep and not listed": (
        lambda s: s.do("ZREM", "asleep:default:a", "deferred"),
        "task deferred is deferred, which 'asleep:default:a' does not agree with",
    ),
    "listed as asleep": (
        lambda s: s.do("ZADD", "asleep:default:q", 0, MADE),
        f"task {MADE} is queued, which 'asleep:default:q' does not agree with",
    ),
    "listed as asleep elsewhere": (
        lambda s: s.do("ZADD", "asleep:default:q", 0, "scheduled"),
        "'asleep:default:q' holds scheduled, which is not one of its tasks",
    ),
    "off its shelf": (
        lambda s: s.do("ZREM", "dead:default", "dead"),
        "task dead is dead but is kept on no shelf",
    ),
    "on two shelves": (
        lambda s: s.do("ZADD", "done:default", 1, "dead"),
        "task dead is dead but is kept on ",
    ),
    "on a shelf though it runs": (
        lambda s: s.do("ZADD", "done:default", 1, "running"),
        "task running is running but is kept on ",
    ),
    "kept until another time": (
        lambda s: s.poke("records", "cancelled", EXPIRES, "d", 5.0),
        "task cancelled is kept until another time than its record says",
    ),
    "out of the list of the completed": (
        lambda s: s.do("LREM", "kept:default", 0, DONE),
        f"task {DONE} is completed but is kept on no shelf",
    ),
    "twice in the list of the completed": (
        lambda s: s.do("RPUSH", "kept:default", DONE),
        f"task {DONE} is completed but is kept on ['done:default', 'done:default']",
    ),
    "behind others that are kept longer": (
        lambda s: s.poke("records", TOO, EXPIRES, "d", 5.0),
        f"task {TOO} is kept behind others that are kept longer",
    ),
    "a shelf with nobody on it": (
        lambda s: s.do("ZADD", "done:default", 1, "nobody"),
        "'done:default' holds nobody, which no longer exists",
    ),
    # -- leases ----------------------------------------------------------------------------
    "a loan of nobody": (
        lambda s: s.do("DEL", "held:w1"),
        "task running is running but w1 does not hold it",
    ),
    "a loan too many": (
        lambda s: s.do("ZADD", "held:w1", 7, "1\x1frunning"),
        "incarnation w1 counts a loan of running, which it does not have",
    ),
    "loans of none": (
        lambda s: s.do("ZADD", "held:w1", 7, "1"),
        "incarnation w1 is kept without leases under token 7",
    ),
    "a lease without an end": (
        lambda s: s.do("ZREM", "leases", "w1"),
        "incarnation w1 has a lease that the sweep would not find",
    ),
    "an end without a lease": (
        lambda s: s.do("ZADD", "leases", 1, "w2"),
        "'leases' has an end for incarnation w2, which holds nothing",
    ),
    "a token that was never given": (
        lambda s: s.poke("records", "running", TOKEN, "d", 9e15),
        "task running runs under token 9000000000000000, which was never given",
    ),
    "a cancel that nobody hears of": (
        lambda s: s.do("DEL", "cancelling:w1"),
        "incarnation w1 does not know whether stopping is to be cancelled",
    ),
    "a cancel that nobody asked for": (
        lambda s: s.do("ZADD", "cancelling:w2", 1, "running"),
        "incarnation w2 is told to cancel running, which it does not run",
    ),
    # -- dependencies ----------------------------------------------------------------------
    "a parent that knows nothing": (
        lambda s: s.do("HSET", "ties", "running", "wd"),
        "task deferred waits for running, which does not know of it",
    ),
    "a child that knows nothing": (
        lambda s: s.do("HDEL", "before", "deferred"),
        "task deferred is deferred but waits for nothing",
    ),
    "a child of many that knows nothing": (
        lambda s: s.do("DEL", "before:wide"),
        "task wide is deferred but waits for nothing",
    ),
    "a child that was said to wait for many": (
        lambda s: s.do("HDEL", "before", "wide"),
        "'before:wide' is there, but its task does not wait for that much",
    ),
    "a child that does not wait": (
        lambda s: s.do("ZADD", s.after("running"), 1, "chosen"),
        "task running would release chosen, which does not wait for it",
    ),
    "a wait of a task that is not deferred": (
        lambda s: s.do("HSET", "before", "chosen", "\x1drunning\x1f1\x1f1"),
        "'before' holds chosen, which is not deferred",
    ),
    "a wait for the past": (
        lambda s: s.do("DEL", "jobs"),
        "waits for parent, which is completed",
    ),
    "a wait for nobody": (
        lambda s: (
            s.do("DEL", "jobs"),
            s.do("HDEL", "tasks", "parent"),
            s.do("HDEL", "records", "parent"),
        ),
        "waits for parent, which no longer exists",
    ),
    "an edge that was never made": (
        lambda s: s.number("edges", 0),
        "task deferred waits for running by an edge that was never made",
    ),
    "a job that cannot be read": (
        lambda s: s.do("ZADD", "jobs", 1, "?"),
        "'jobs' holds what cannot be read: '?'",
    ),
    "a job of the future": (
        lambda s: s.number("jobs", 0),
        "under a number that was never given",
    ),
    "dependents without a tie": (
        lambda s: s.tie("running", "w"),
        "task running has dependents that would not be told of its end",
    ),
    "watchers without a tie": (
        lambda s: s.tie("running", "d"),
        "task running has watchers that would not be told of its end",
    ),
    "a tie without watchers": (
        lambda s: s.do("HDEL", "watchers", "running"),
        "task running is said to have watchers, but there are none",
    ),
    "a tie of nobody": (
        lambda s: s.do("HSET", "ties", "nobody", "d"),
        "'ties' holds nobody, which no longer exists",
    ),
    "watchers of the past": (
        lambda s: s.do("HSET", "watchers", "dead", "w2"),
        "'watchers' waits for the end of dead, which is over",
    ),
    # -- keys ------------------------------------------------------------------------------
    "a unique key of the past": (
        lambda s: s.do("HSET", "unique", "a\x1fkey", "dead"),
        "unique key key of a is held by dead, which is over",
    ),
    "a unique key that was lost": (
        lambda s: s.do("HDEL", "unique", "r\x1funtil-done"),
        "task running should hold the unique key until-done but does not",
    ),
    "a window of nothing": (
        lambda s: s.do("ZADD", "windows", 1, "a\x1fkey"),
        "'windows' ends the unique key key of a, which nobody holds",
    ),
    "an XCom value without end": (
        lambda s: s.do("DEL", "xcom-ends"),
        "the XCom value key of r has no end",
    ),
    "the end of no XCom value": (
        lambda s: s.do("ZADD", "xcom-ends", 1, "r\x1fother"),
        "'xcom-ends' ends the XCom value other of r, which does not exist",
    ),
    # -- queues ----------------------------------------------------------------------------
    "a count of a queue": (
        lambda s: s.poke("queues", "default", COUNTS + 4 * 3, "I", 77),
        "queue default counts 77 running tasks, there are 5",
    ),
    "a count of a tenant": (
        lambda s: s.poke("tenants:default", "q", 4 * 2, "I", 77),
        "tenant q of default counts 77 queued tasks, there are 4",
    ),
    "a count of special queued tasks": (
        lambda s: s.poke("tenants:default", "q", SPECIAL, "I", 77),
        "tenant q of default miscounts its special queued tasks",
    ),
    "a sum of weights": (
        lambda s: s.poke("queues", "default", WEIGHT, "d", 7),
        "queue default has 7 as the sum of weights",
    ),
    "bytes of the finished": (
        lambda s: s.poke("queues", "default", DONE_BYTES, "d", 7),
        "queue default counts 7 bytes of finished tasks",
    ),
    "bytes of the dead": (
        lambda s: s.poke("queues", "default", DEAD_BYTES, "d", 7),
        "queue default counts 7 bytes of dead tasks",
    ),
    "a length of a line": (
        lambda s: s.poke("tenants:default", "q", LENGTH + 4 * 3, "I", 7),
        "the line 'default:3:q' has 1 entries, its tenant says 7",
    ),
    "no tenant": (
        lambda s: s.do("HDEL", "tenants:default", "q"),
        f"task {MADE} belongs to a tenant that its queue has dropped",
    ),
    "no queue": (
        lambda s: s.do("HDEL", "queues", "rated"),
        "'tenants:rated' belongs to no queue",
    ),
    "garbage for a tenant": (
        lambda s: s.do("HSET", "tenants:default", "q", "?"),
        "'tenants:default' holds what cannot be read for 'q'",
    ),
    "garbage for a queue": (
        lambda s: s.do("HSET", "queues", "rated", "?"),
        "'queues' holds what cannot be read for 'rated'",
    ),
    "settings of no queue": (
        lambda s: s.do("HSET", "settings", "other", s.do("HGET", "settings", "rated")),
        "'settings' has some for other, which is no queue",
    ),
    "an order of no queue": (
        lambda s: s.do("ZADD", "ready:other", 1, "a"),
        "'ready:other' belongs to no queue",
    ),
    "an order without a sentinel": (
        lambda s: s.do("ZREM", "ready:default", SENTINEL),
        "'ready:default' lacks the member that is always there",
    ),
    "ready but not to be found": (
        lambda s: s.do("ZREM", "ready:default", "q"),
        "tenant q of default is ready but fetch cannot find it",
    ),
    "to be found but not ready": (
        lambda s: s.do("ZADD", "ready:default", 1, "g"),
        "'ready:default' holds tenant g, which is not ready",
    ),
    "ordered by another tag": (
        lambda s: s.poke("tenants:default", "q", TAG, "d", 123.0),
        "tenant q of default is ordered by another tag than its own",
    ),
    "not active": (
        lambda s: s.do("SREM", "active:default", "q"),
        "tenant q of default is wrongly listed as active or not",
    ),
    "said to be idle": (
        lambda s: s.poke("tenants:default", "q", BUSY, "B", 0),
        "tenant q of default is wrongly listed as active or not",
    ),
    "active without anything": (
        lambda s: s.do("SADD", "active:default", "nobody"),
        "'active:default' holds tenant nobody, which has nothing",
    ),
    "idle with work": (
        lambda s: s.poke("tenants:default", "q", STATUS, "B", 0),
        "tenant q of default is idle, 4 queued",
    ),
    "paused by nobody": (
        lambda s: s.poke("tenants:default", "stopped", PAUSE, "B", 0),
        "tenant stopped of default is paused, which is not what was set for it",
    ),
    "ready though paused": (
        lambda s: s.poke("tenants:default", "q", PAUSE, "B", 1),
        "tenant q of default is ready, which is not what was set for it",
    ),
    "a limit that is nowhere": (
        lambda s: s.poke("tenants:default", "q", GATED, "B", 1),
        "tenant q of default has a limit that is stored nowhere",
    ),
    "parked for no reason": (
        lambda s: s.do("HDEL", "gates", "default\x1fslow"),
        "tenant slow of default is parked for no reason",
    ),
    "parked for good": (
        lambda s: s.do("ZREM", "alarms", "default\x1fslow"),
        "tenant slow of default is parked although there is room, or will be",
    ),
    "a limit that nobody set": (
        lambda s: s.do("HDEL", "tenant-settings", "\x1fslow"),
        "'gates' limits tenant slow of default, for which no limit was set",
    ),
    "a rate that nobody watches": (
        lambda s: s.do("ZREM", "alarms", "rated\x1f"),
        "queue rated waits for its rate, and nothing will tell when that allows more",
    ),
    # -- limiters --------------------------------------------------------------------------
    "a count of a limiter": (
        lambda s: s.poke("limiters", "gpu", -8, "d", 0),
        "limiter gpu counts 0, 1 are held",
    ),
    "a limiter that has room": (
        lambda s: s.poke("limiters", "gpu", 0, "d", 2),
        "tenant g of default waits for limiter gpu, which has room",
    ),
    "no limiter": (
        lambda s: s.do("HDEL", "limiters", "gpu"),
        "tenant g of default waits at limiter gpu, which does not exist",
    ),
    "a waiter that is not known": (
        lambda s: s.do("DEL", "waiters:gpu:default"),
        "tenant g of default waits at limiter gpu, which does not know of it",
    ),
    "a waiter that does not wait": (
        lambda s: s.do("ZADD", "waiters:gpu:default", 1, "q"),
        "limiter gpu would wake tenant q of default, which does not wait there",
    ),
    "a count of waiters": (
        lambda s: s.do("ZADD", "lobby:gpu", 7, "default"),
        "limiter gpu counts 7 waiters of default, there are 1",
    ),
    "waiters of a queue without any": (
        lambda s: s.do("ZADD", "lobby:gpu", 7, "rated"),
        "limiter gpu counts 7 waiters of rated, there are 0",
    ),
    # -- breakers --------------------------------------------------------------------------
    "a breaker that cannot be read": (
        lambda s: s.do("HSET", "limiters", "api", s.do("HGET", "limiters", "api") + b"?"),
        "'limiters' holds what cannot be read for 'api'",
    ),
    "a breaker with impossible settings": (
        lambda s: s.poke("limiters", "api", COOLDOWN, "d", -1.0),
        "'limiters' holds what cannot be read for 'api'",
    ),
    "an open breaker that nobody watches": (
        lambda s: s.do("ZREM", "alarms", "\x1fapi"),
        "tenant for-api of api waits for limiter api, which has room",
    ),
    "a half open breaker that has room": (
        lambda s: s.poke("limiters", "db", PROBES, "d", 2.0),
        "tenant db-two of db waits for limiter db, which has room",
    ),
    "a count of probes": (
        lambda s: s.poke("limiters", "db", PROBING, "d", 2.0),
        "limiter db counts 2 probes, 1 run",
    ),
    "a breaker of the future": (
        lambda s: s.poke("limiters", "api", OPENED_AFTER, "d", 9e15),
        "limiter api opened after a token that was never given",
    ),
    # -- the rest --------------------------------------------------------------------------
    "an answer that cannot be read": (
        lambda s: s.do("HSET", "answers", "w1", "1"),
        "'answers' holds what cannot be read for 'w1'",
    ),
    "an error that cannot be read": (
        lambda s: s.do("HSET", "errors", "dead", "?"),
        "'errors' holds what cannot be read for 'dead'",
    ),
    "a worker that cannot be read": (
        lambda s: s.do("HSET", "workers", "w1", "?"),
        "'workers' holds what cannot be read for 'w1'",
    ),
    "settings that cannot be read": (
        lambda s: s.do("HSET", "tenant-settings", "\x1fslow", "?"),
        "'tenant-settings' holds what cannot be read for ",
    ),
    "an answer for good": (
        lambda s: s.do("HSET", "answers", "w9", "1\x1fexchange\x1f"),
        "'answers' keeps one for incarnation w9, which will never be forgotten",
    ),
    "mail for good": (
        lambda s: s.do("ZREM", "idle", "w2"),
        "'mail:w2' belongs to an incarnation that will never be forgotten",
    ),
    "a letter that cannot be read": (
        lambda s: s.do("RPUSH", "mail:w2", "?"),
        "'mail:w2' holds what cannot be read: '?'",
    ),
    "a letter that was never written": (
        lambda s: s.do("RPUSH", "mail:w2", "999\x1ffinished\x1fdead\x1f7\x1f0"),
        "'mail:w2' holds letter 999 behind ",
    ),
    "an entry of an outbox that cannot be read": (
        lambda s: s.do("RPUSH", "outbox:1", "?"),
        "'outbox:1' holds what cannot be read: '?'",
    ),
    "an entry of an outbox that was never written": (
        lambda s: s.do("RPUSH", "outbox:1", "\x1f".join("9tc0p0")),
        "'outbox:1' holds entry 9 behind 0 of 0",
    ),
    "a worker for good": (
        lambda s: s.do("DEL", "seen"),
        "'workers' keeps w1, which will never be forgotten",
    ),
    "no worker": (
        lambda s: s.do("DEL", "workers"),
        "'seen' keeps w1, which is no worker",
    ),
    "a schedule that is none": (
        lambda s: s.do("HSET", "schedules", "nightly", "?"),
        "'schedules' holds what cannot be read for 'nightly'",
    ),
    "a schedule that nobody will look at": (
        lambda s: s.do("ZREM", "ticks", "nightly"),
        "schedule nightly is due at ",
    ),
    "a schedule that is looked at too early": (
        lambda s: s.do("ZADD", "ticks", 1, "nightly"),
        "schedule nightly is due at ",
    ),
    "a paused schedule that is looked at": (
        lambda s: s.do("ZADD", "ticks", 1, "stopped"),
        "schedule stopped is looked at although it has nothing to fire",
    ),
    "no schedule": (
        lambda s: s.do("ZADD", "ticks", 1, "ghost"),
        "schedule ghost is looked at, but is not stored",
    ),
    "a schedule of a revision to come": (
        lambda s: s.do(
            "HSET", "schedules", "stopped", "default\x1f9007199254740991\x1f1\x1f\x1f\x1f1\x1f"
        ),
        "schedule stopped has revision 9007199254740991, which was never given",
    ),
    "a reader that is nowhere": (
        lambda s: s.do("HSET", "readers", "reader", "?"),
        "'readers' holds what cannot be read for 'reader'",
    ),
    "events that were lost": (
        lambda s: s.do("XTRIM", "events", "MAXLEN", "=", 1),
        "'events' has 1 entries from ",
    ),
    "a mark where nothing is": (
        lambda s: s.do("RPUSH", "marks", "9999999999999999 1 1"),
        "'marks' holds 9999999999999999, where no entry can be cut",
    ),
    "a mark that cannot be read": (
        lambda s: s.do("RPUSH", "marks", "?"),
        "'marks' holds what cannot be read: '?'",
    ),
    "a bell that is rung twice": (
        lambda s: s.do("RPUSH", "bell:default", 1, 1),
        "the bell 'bell:default' has ",
    ),
    "a number that is none": (
        lambda s: s.do("HSET", "meta", "dropped", "?"),
        "'meta' holds what cannot be read for 'dropped'",
    ),
    # -- keys of the server ----------------------------------------------------------------
    "a key of a stranger": (
        lambda s: s.do("SET", "stranger", "?"),
        "the key 'stranger' is none that Fairlead writes",
    ),
    "a key of a family that there is not": (
        lambda s: s.do("SET", "tasks:default", "?"),
        "the key 'tasks:default' is none that Fairlead writes",
    ),
    "a key that is no text": (
        lambda s: s.do("SET", "\udcff".encode("utf-8", "surrogateescape"), "?"),
        "is none that Fairlead writes",
    ),
    "a key of another type": (
        lambda s: (s.do("DEL", "due"), s.do("SET", "due", "?")),
        "the key 'due' is a string, not a zset",
    ),
    "a line of another type": (
        lambda s: s.do("SADD", "line:default:0:q", "?"),
        "the key 'line:default:0:q' is a set, not a list",
    ),
    **SPOILED_FLOWS,
    **COUNTED,
}
