-- name: list_tasks
-- A page, newest first. The caller leaves out those lines (marked by @name) whose condition was not
-- given, so that the planner sees only what was asked.
select t.id, t.seq, t.state, t.queue, t.tenant, t.name, t.level, t.flow, t.created_at, t.due_at,
       t.deadline_at, t.updated_at, t.started_at, t.finished_at, t.attempts, t.worker, t.reason,
       t.error_type, t.error, t.stands_for, t.pushes, t.recoveries
from fairlead.listings l join fairlead.tasks t on t.id = l.id
where true
  and (l.created_at, l.seq) < (%(before)s, %(before_seq)s) -- @before
  and t.state = %(state)s -- @state
  and l.queue = %(queue)s -- @queue
  and l.tenant = %(tenant)s -- @tenant
  and l.name = %(name)s -- @name
  and t.error_type <> '' and to_tsvector('simple', t.error_type || ' ' || t.error) @@ plainto_tsquery('simple', %(error)s) -- @error
  and l.created_at >= to_timestamp(%(since)s) -- @since
  and l.created_at < to_timestamp(%(until)s) -- @until
order by l.created_at desc, l.seq desc
limit %(limit)s;

-- name: list_few_tasks
-- The same for a state or an error that few tasks have: all of these may be looked at.
select t.id, t.seq, t.state, t.queue, t.tenant, t.name, t.level, t.flow, t.created_at, t.due_at,
       t.deadline_at, t.updated_at, t.started_at, t.finished_at, t.attempts, t.worker, t.reason,
       t.error_type, t.error, t.stands_for, t.pushes, t.recoveries
from fairlead.tasks t
where true
  and (t.created_at, t.seq) < (%(before)s, %(before_seq)s) -- @before
  and t.state = %(state)s -- @state
  and t.queue = %(queue)s -- @queue
  and t.tenant = %(tenant)s -- @tenant
  and t.name = %(name)s -- @name
  and t.error_type <> '' and to_tsvector('simple', t.error_type || ' ' || t.error) @@ plainto_tsquery('simple', %(error)s) -- @error
  and t.created_at >= to_timestamp(%(since)s) -- @since
  and t.created_at < to_timestamp(%(until)s) -- @until
order by t.created_at desc, t.seq desc
limit %(limit)s;

-- name: count_tasks
-- How many tasks have a state or an error, counted to a limit.
select count(*) from (
    select from fairlead.tasks t
    where true
      and t.state = %(state)s -- @state
      and t.error_type <> '' and to_tsvector('simple', t.error_type || ' ' || t.error) @@ plainto_tsquery('simple', %(error)s) -- @error
    limit %(limit)s
) as found;

-- name: task
select id, seq, state, queue, tenant, name, level, flow, created_at, due_at, deadline_at, updated_at,
       started_at, finished_at, attempts, worker, reason, error_type, error, stands_for, pushes, recoveries, log
from fairlead.tasks where id = %(id)s;

-- name: workers_of
-- Who these incarnations were.
select incarnation, host, pid, started_at from fairlead.workers where incarnation = any(%(incarnations)s);
