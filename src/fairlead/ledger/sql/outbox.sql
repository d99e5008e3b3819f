-- name: enqueue_tasks
-- These run in the callers' own transactions, through any driver: one parameter, a text.
select task_id, code from fairlead.enqueue_tasks(cast(cast(%(text)s as text) as json));

-- name: enqueue_flow
select fairlead.enqueue_flow(cast(cast(%(text)s as text) as json));

-- name: stored_draft
-- The flow that stands for one that was enqueued again.
select encode(draft, 'base64') from fairlead.flows where id = cast(%(text)s as text);

-- name: task_standing
-- What a handle asks for while the broker does not know the task.
select state, reason, stands_for, error_type, error
from fairlead.tasks where id = %(id)s and tenant = %(tenant)s;

-- name: flow_standing
select state, reason from fairlead.flows where id = %(id)s and tenant = %(tenant)s;

-- name: cancel_pending
-- Only what was not claimed: the broker may have what was.
update fairlead.tasks
set state = 'cancelled', reason = 'cancelled', updated_at = clock_timestamp(),
    finished_at = clock_timestamp()
where id = %(id)s and tenant = %(tenant)s and state = 'pending'
returning pushes;

-- name: cancel_pending_flow
update fairlead.flows
set state = 'cancelled', reason = 'cancelled', updated_at = clock_timestamp(),
    finished_at = clock_timestamp()
where id = %(id)s and tenant = %(tenant)s and state = 'pending'
returning pushes;
