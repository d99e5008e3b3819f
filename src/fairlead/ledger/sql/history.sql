-- name: list_tasks
-- A page, newest first. The caller leaves out those lines (marked by @name) whose condition was not
-- given, so that the planner sees only what was asked.
select id, seq, state, queue, tenant, name, level, flow, created_at, due_at, deadline_at, updated_at,
       started_at, finished_at, attempts, worker, reason, error_type, error, stands_for, pushes, recoveries
from fairlead.tasks
where true
  and (created_at, seq) < (%(before)s, %(before_seq)s) -- @before
  and state = %(state)s -- @state
  and queue = %(queue)s -- @queue
  and tenant = %(tenant)s -- @tenant
  and name = %(name)s -- @name
  and error_type <> '' and to_tsvector('simple', error_type || ' ' || error) @@ plainto_tsquery('simple', %(error)s) -- @error
  and created_at >= to_timestamp(%(since)s) -- @since
  and created_at < to_timestamp(%(until)s) -- @until
order by created_at desc, seq desc
limit %(limit)s;

-- name: task
select id, seq, state, queue, tenant, name, level, flow, created_at, due_at, deadline_at, updated_at,
       started_at, finished_at, attempts, worker, reason, error_type, error, stands_for, pushes, recoveries, log
from fairlead.tasks where id = %(id)s;

-- name: workers_of
-- Who these incarnations were.
select incarnation, host, pid, started_at from fairlead.workers where incarnation = any(%(incarnations)s);
