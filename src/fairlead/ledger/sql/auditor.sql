-- name: send_again
-- The broker has lost them: back to pending, or dead if nobody can send them. A row that an event
-- has moved on since it was read stays as it is.
with holds as materialized (
    select 1 from fairlead.leadership where term = %(term)s for share
), free as materialized (
    select t.id from fairlead.tasks t where t.id = any(%(ids)s) and exists (select from holds)
    for update of t skip locked
)
update fairlead.tasks t
set state = case when t.submission is not null then 'pending' else 'dead' end,
    reason = 'lost', updated_at = clock_timestamp(),
    due_at = greatest(t.due_at, clock_timestamp()),
    finished_at = case when t.submission is not null then null else clock_timestamp() end
from unnest(%(ids)s::text[], %(entries)s::bigint[], %(indexes)s::int[]) as g(id, entry, index)
where t.id = g.id and t.finished_at is null and t.state not in ('pending', 'claimed')
  and (t.last_entry, t.last_index) = (g.entry, g.index) and t.id = any(array(select free.id from free))
returning t.id, t.state;

-- name: follow_tasks
-- What the broker says of tasks, where the row knows nothing newer.
with holds as materialized (
    select 1 from fairlead.leadership where term = %(term)s for share
), free as materialized (
    select t.id from fairlead.tasks t where t.id = any(%(ids)s) and exists (select from holds)
    for update of t skip locked
)
update fairlead.tasks t
set state = g.state, attempts = greatest(t.attempts, g.attempts), reason = g.reason,
    error_type = coalesce(nullif(g.error_type, ''), t.error_type),
    error = coalesce(nullif(g.error, ''), t.error),
    started_at = coalesce(to_timestamp(g.started_at), t.started_at),
    finished_at = case when g.state in ('completed', 'dead', 'cancelled')
                       then coalesce(to_timestamp(g.finished_at), clock_timestamp()) end,
    claimed_term = null, updated_at = clock_timestamp()
from unnest(%(ids)s::text[], %(states)s::text[], %(attempts)s::int[], %(reasons)s::text[],
            %(error_types)s::text[], %(errors)s::text[], %(started)s::float8[],
            %(finished)s::float8[], %(entries)s::bigint[], %(indexes)s::int[])
    as g(id, state, attempts, reason, error_type, error, started_at, finished_at, entry, index)
where t.id = g.id and (t.last_entry, t.last_index) = (g.entry, g.index) and t.id = any(array(select free.id from free))
returning t.id;

-- name: unchecked_flows
select id from fairlead.flows
where state = 'running' and checked_at < statement_timestamp() - make_interval(secs => %(older)s)
order by checked_at limit %(limit)s;

-- name: flow_states
select id, state from fairlead.flows where id = any(%(ids)s);

-- name: touch_flows
with holds as materialized (
    select 1 from fairlead.leadership where term = %(term)s for share
)
update fairlead.flows f set checked_at = clock_timestamp()
where f.id = any(%(ids)s) and exists (select from holds);

-- name: follow_flow
with holds as materialized (
    select 1 from fairlead.leadership where term = %(term)s for share
)
update fairlead.flows f
set state = %(state)s, updated_at = clock_timestamp(), checked_at = clock_timestamp(),
    due_at = clock_timestamp(), reason = %(reason)s,
    finished_at = case when %(state)s in ('completed', 'dead', 'cancelled') then clock_timestamp() end
where f.id = %(id)s and f.state = 'running' and exists (select from holds)
returning f.id;

-- name: settle_places
-- All unfinished rows were compared with these servers, each given with its generation.
with holds as materialized (
    select 1 from fairlead.leadership where term = %(term)s for share
)
update fairlead.places p set replication = g.replication
from unnest(%(generations)s::text[], %(replications)s::text[]) as g(generation, replication)
where p.generation = g.generation and exists (select from holds)
returning p.shard;
