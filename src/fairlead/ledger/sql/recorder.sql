-- name: places
select shard, generation, entry, index from fairlead.places;

-- name: move_place
-- The place behind what is written in the same transaction; no row if another has moved it.
with holds as materialized (
    select 1 from fairlead.leadership where term = %(term)s for share
)
insert into fairlead.places as p (shard, generation, entry, index)
select %(shard)s, %(generation)s, %(entry)s, %(index)s from holds
on conflict (shard) do update
set generation = excluded.generation, entry = excluded.entry, index = excluded.index,
    updated_at = clock_timestamp()
where p.entry = %(was_entry)s and p.index = %(was_index)s and p.generation = %(was_generation)s
returning p.shard;

-- name: record_tasks
-- What happened to tasks, one row for each: those that are not here yet come in.
insert into fairlead.tasks as t (id, state, queue, tenant, name, level, flow, submission, content,
    created_at, due_at, updated_at, checked_at, started_at, finished_at, attempts, worker, reason,
    error_type, error, last_entry, last_index, log)
select g.id, g.state, g.queue, g.tenant, g.name, g.level, g.flow, g.submission, g.content,
    to_timestamp(g.at), to_timestamp(g.at), to_timestamp(g.at), clock_timestamp(),
    to_timestamp(g.started_at), to_timestamp(g.finished_at), g.attempts, g.worker, g.reason,
    g.error_type, g.error, g.last_entry, g.last_index, g.log
from unnest(%(ids)s::text[], %(states)s::text[], %(queues)s::text[], %(tenants)s::text[],
    %(names)s::text[], %(levels)s::smallint[], %(flows)s::text[], %(submissions)s::bytea[],
    %(contents)s::bytea[], %(at)s::float8[], %(started)s::float8[], %(finished)s::float8[],
    %(attempts)s::int[], %(workers)s::text[], %(reasons)s::text[], %(error_types)s::text[],
    %(errors)s::text[], %(entries)s::bigint[], %(indexes)s::int[], %(logs)s::bytea[])
    as g(id, state, queue, tenant, name, level, flow, submission, content, at, started_at,
         finished_at, attempts, worker, reason, error_type, error, last_entry, last_index, log)
order by g.id
on conflict (id) do update
set state = excluded.state, claimed_term = null, updated_at = excluded.updated_at,
    checked_at = excluded.checked_at,
    started_at = coalesce(excluded.started_at, t.started_at),
    finished_at = excluded.finished_at,
    attempts = greatest(t.attempts, excluded.attempts),
    worker = coalesce(nullif(excluded.worker, ''), t.worker),
    reason = excluded.reason,
    error_type = coalesce(nullif(excluded.error_type, ''), t.error_type),
    error = coalesce(nullif(excluded.error, ''), t.error),
    name = coalesce(nullif(t.name, ''), excluded.name),
    flow = coalesce(nullif(t.flow, ''), excluded.flow),
    submission = coalesce(t.submission, excluded.submission),
    content = coalesce(t.content, excluded.content),
    last_entry = excluded.last_entry, last_index = excluded.last_index,
    log = case when octet_length(t.log) < 65536 then t.log || excluded.log else t.log end
where (t.last_entry, t.last_index) < (excluded.last_entry, excluded.last_index);

-- name: unknown_ids
-- Which of these have no row.
select g.id from unnest(%(ids)s::text[]) as g(id)
where not exists (select from fairlead.tasks t where t.id = g.id);

-- name: record_workers
insert into fairlead.workers as w (incarnation, host, pid, started_at)
select g.incarnation, g.host, g.pid, to_timestamp(g.started_at)
from unnest(%(incarnations)s::text[], %(hosts)s::text[], %(pids)s::int[], %(started)s::float8[])
    as g(incarnation, host, pid, started_at)
on conflict (incarnation) do update
set host = coalesce(nullif(excluded.host, ''), w.host), pid = greatest(w.pid, excluded.pid),
    started_at = coalesce(excluded.started_at, w.started_at), seen_at = clock_timestamp();
