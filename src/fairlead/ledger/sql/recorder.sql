-- name: places
select shard, generation, entry, index, replication from fairlead.places;

-- name: move_place
-- The place behind what is written in the same transaction; no row if another has moved it. In
-- another generation nothing was compared yet.
with holds as materialized (
    select 1 from fairlead.leadership where term = %(term)s for share
)
insert into fairlead.places as p (shard, generation, entry, index, replication)
select %(shard)s, %(generation)s, %(entry)s, %(index)s, %(replication)s from holds
on conflict (shard) do update
set generation = excluded.generation, entry = excluded.entry, index = excluded.index,
    replication = case when p.generation = excluded.generation then p.replication else '' end,
    updated_at = clock_timestamp()
where p.entry = %(was_entry)s and p.index = %(was_index)s and p.generation = %(was_generation)s
returning p.shard;

-- name: last_events
-- Of these tasks those that have a row: its last event, and what the broker need not be asked for.
select t.id, t.last_entry, t.last_index, t.name <> '' as is_named,
       t.submission is not null as is_sendable
from fairlead.tasks t where t.id = any(%(ids)b);

-- name: make_incoming
-- Where changes are copied to: for Python that is ten times cheaper than arrays as parameters.
create temporary table if not exists incoming_1 (
    id text, state text, queue text, tenant text, name text, level smallint, flow text,
    submission bytea, content bytea, depends_on text[], created_at float8, due_at float8,
    deadline_at float8, changed_at float8, started_at float8, finished_at float8, attempts integer,
    begins boolean, worker text, reason text, error_type text, error text, last_entry bigint,
    last_index integer, log bytea
) on commit delete rows;

-- name: join_by_index
-- Until the end of the transaction. Nothing is known of a temporary table, so the planner would rather
-- read all tasks once than look some thousands up.
select set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true);

-- name: copy_incoming
copy pg_temp.incoming_1 (id, state, queue, tenant, name, level, flow, submission, content, depends_on,
    created_at, due_at, deadline_at, changed_at, started_at, finished_at, attempts, begins, worker,
    reason, error_type, error, last_entry, last_index, log)
from stdin with (format binary);

-- name: move_tasks
-- What happened to tasks that have a row. Null: not said. A row that was never sent has no events
-- yet: those of another task with its id leave it alone, and so do those of a task that has the id
-- of one that was refused.
with holds as materialized (
    select 1 from fairlead.leadership where term = %(term)s for share
)
update fairlead.tasks t
set state = g.state, claimed_term = null,
    updated_at = coalesce(to_timestamp(g.changed_at), t.updated_at),
    started_at = coalesce(to_timestamp(g.started_at), t.started_at),
    finished_at = case when g.state in ('completed', 'dead', 'cancelled') then coalesce(
        to_timestamp(g.finished_at), t.finished_at, to_timestamp(g.created_at)) end,
    attempts = case when g.begins then g.attempts else greatest(t.attempts, g.attempts) end,
    worker = coalesce(nullif(g.worker, ''), t.worker),
    reason = coalesce(g.reason, t.reason),
    error_type = coalesce(nullif(g.error_type, ''), t.error_type),
    error = coalesce(nullif(g.error, ''), t.error),
    name = coalesce(nullif(t.name, ''), g.name),
    level = coalesce(g.level, t.level),
    flow = coalesce(nullif(t.flow, ''), g.flow),
    submission = coalesce(t.submission, g.submission),
    content = coalesce(t.content, g.content),
    last_entry = g.last_entry, last_index = g.last_index,
    log = case when octet_length(t.log) + octet_length(g.log) <= 65536 then t.log || g.log
               else t.log end
from pg_temp.incoming_1 g
where t.id = g.id and (t.last_entry, t.last_index) < (g.last_entry, g.last_index)
  and t.state <> 'refused'
  and not (t.state = 'pending' and t.pushes = 0 and t.last_entry = 0)
  and exists (select from holds);

-- name: add_tasks
-- What happened to tasks that have none: they were enqueued directly.
with holds as materialized (
    select 1 from fairlead.leadership where term = %(term)s for share
)
insert into fairlead.tasks as t (id, state, queue, tenant, name, level, flow, submission, content,
    depends_on, created_at, due_at, deadline_at, updated_at, started_at, finished_at, attempts,
    worker, reason, error_type, error, last_entry, last_index, log)
select g.id, g.state, g.queue, g.tenant, g.name, coalesce(g.level, 2), g.flow, g.submission,
    g.content, coalesce(g.depends_on, '{}'), to_timestamp(g.created_at),
    to_timestamp(coalesce(g.due_at, g.created_at)), to_timestamp(g.deadline_at),
    to_timestamp(coalesce(g.changed_at, g.created_at)), to_timestamp(g.started_at),
    case when g.state in ('completed', 'dead', 'cancelled')
         then to_timestamp(coalesce(g.finished_at, g.created_at)) end,
    g.attempts, g.worker, coalesce(g.reason, ''), g.error_type, g.error, g.last_entry,
    g.last_index, g.log
from pg_temp.incoming_1 g
where not exists (select from fairlead.tasks k where k.id = g.id) and exists (select from holds)
on conflict (id) do nothing;

-- name: record_flows
-- Flows that were enqueued here; of others there is no row.
with holds as materialized (
    select 1 from fairlead.leadership where term = %(term)s for share
)
update fairlead.flows f
set state = g.state, claimed_term = null, reason = '', updated_at = to_timestamp(g.at),
    checked_at = clock_timestamp(),
    finished_at = case when g.state = 'running' then null else to_timestamp(g.at) end
from unnest(%(ids)s::text[], %(states)s::text[], %(at)s::float8[]) as g(id, state, at)
where f.id = g.id and f.state <> 'refused' and not (f.state = 'pending' and f.pushes = 0)
  and (g.state <> 'running' or f.finished_at is null or f.finished_at < to_timestamp(g.at))
  and exists (select from holds)
returning f.id;

-- name: unfinished_tasks
-- A page of the rows in one state, newest first, to compare all of them with the broker, or those
-- that are older than so many seconds.
select id, last_entry, last_index, flow, created_at, seq from fairlead.tasks
where state = %(state)s
  and created_at < statement_timestamp() - make_interval(secs => %(older)s) -- @older
  and (created_at, seq) < (%(before)s, %(before_seq)s) -- @before
order by created_at desc, seq desc limit %(limit)s;

-- name: forget_tasks
-- They ended while nobody read the events, and the broker has forgotten them: how is not known.
with holds as materialized (
    select 1 from fairlead.leadership where term = %(term)s for share
)
update fairlead.tasks t
set state = 'completed', reason = 'forgotten', updated_at = clock_timestamp(),
    finished_at = clock_timestamp()
from unnest(%(ids)s::text[], %(entries)s::bigint[], %(indexes)s::int[]) as g(id, entry, index)
where t.id = g.id and t.finished_at is null and t.state not in ('pending', 'claimed')
  and (t.last_entry, t.last_index) = (g.entry, g.index) and exists (select from holds)
returning t.id;

-- name: unfinished_flows
-- A page of the flows that the broker should know.
select id, checked_at from fairlead.flows
where state = 'running'
  and (checked_at, id) > (%(after)s, %(after_id)s) -- @after
order by checked_at, id limit %(limit)s;

-- name: record_workers
insert into fairlead.workers as w (incarnation, host, pid, started_at)
select g.incarnation, g.host, g.pid, to_timestamp(g.started_at)
from unnest(%(incarnations)s::text[], %(hosts)s::text[], %(pids)s::int[], %(started)s::float8[])
    as g(incarnation, host, pid, started_at)
on conflict (incarnation) do update
set host = coalesce(nullif(excluded.host, ''), w.host), pid = greatest(w.pid, excluded.pid),
    started_at = coalesce(excluded.started_at, w.started_at), seen_at = clock_timestamp();
