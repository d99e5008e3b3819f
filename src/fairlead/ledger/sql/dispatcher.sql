-- name: claim_tasks
-- Make due rows ours: those that are due longest, and if there are more than one batch, half of it in
-- equal parts for tenants that have any, so that nobody waits behind the flood of another. If they
-- are very many, some of them by chance. With 16 MiB a batch is full, however few they are. Only the
-- leader's term gets any.
with recursive holds as materialized (
    select 1 from fairlead.leadership where term = %(term)s for share
), crowd as materialized (
    select count(*) > %(limit)s::int as is_one from (
        select from fairlead.tasks t
        where t.state = 'pending' and t.due_at <= statement_timestamp()
        order by t.due_at, t.seq
        -- A limit that the planner cannot see: without statistics it would sort all that are due.
        limit (select %(limit)s::int + 1)
    ) as waiting
), tenants as (
    -- One step in the index for each tenant: its first row.
    (select t.tenant, t.due_at from fairlead.tasks t
     where t.state = 'pending' and (select is_one from crowd)
     order by t.tenant, t.due_at, t.seq limit 1)
    union all
    select n.tenant, n.due_at from tenants p cross join lateral (
        select t.tenant, t.due_at from fairlead.tasks t
        where t.state = 'pending' and t.tenant > p.tenant
        order by t.tenant, t.due_at, t.seq limit 1
    ) n
), chosen as materialized (
    select c.tenant, count(*) over () as tenants from (
        select f.tenant from (select * from tenants limit 1000) f
        where f.due_at <= statement_timestamp()
        order by random() limit %(limit)s::int / 2
    ) c
), fair as materialized (
    select f.*, row_number() over (partition by c.tenant order by f.due_at, f.seq) as turn
    from chosen c cross join lateral (
        select t.ctid, t.due_at, t.seq, octet_length(t.submission) as size from fairlead.tasks t
        where t.state = 'pending' and t.tenant = c.tenant and t.due_at <= statement_timestamp()
            and exists (select from holds)
        order by t.due_at, t.seq
        limit %(limit)s::int / 2 / c.tenants
        for update of t skip locked
    ) f
    where c.tenants > 1
), due as materialized (
    select t.ctid, t.due_at, t.seq, octet_length(t.submission) as size from fairlead.tasks t
    where t.state = 'pending' and t.due_at <= statement_timestamp() and exists (select from holds)
        and t.seq not in (select fair.seq from fair)
    order by t.due_at, t.seq
    limit %(limit)s::int - (select count(*) from fair)
    for update of t skip locked
), weighed as (
    select s.ctid, sum(s.size) over (order by s.turn, s.due_at, s.seq rows unbounded preceding) - s.size
        as before
    from (select * from fair union all select due.*, %(limit)s::bigint from due) s
), claimed as (
    -- Where a row lies, while it is locked, is the cheapest way to it. An array, not a join: for a
    -- small table the planner would join by a scan of all rows.
    update fairlead.tasks t set state = 'claimed', claimed_term = %(term)s, pushes = t.pushes + 1
    where t.ctid = any(array(select w.ctid from weighed w where w.before < 16777216))
    returning t.id, t.seq, t.due_at, t.submission, t.depends_on, t.deadline_at, t.pushes
)
select id, submission, depends_on,
       extract(epoch from deadline_at - clock_timestamp())::float8 as deadline,
       extract(epoch from clock_timestamp() - due_at)::float8 as late, pushes
from claimed order by due_at, seq;

-- name: confirm_tasks
-- The broker has them, all in the same state. A row that the recorder has moved on stays as it is.
with holds as materialized (
    select 1 from fairlead.leadership where term = %(term)s for share
), free as materialized (
    select t.ctid from fairlead.tasks t
    where t.id = any(%(ids)b) and t.state = 'claimed' and t.claimed_term = %(term)s
      and exists (select from holds)
    for update of t skip locked
)
update fairlead.tasks t
set state = %(state)s, claimed_term = null, reason = '', updated_at = clock_timestamp(),
    finished_at = case when %(state)s in ('completed', 'dead', 'cancelled') then clock_timestamp() end
where t.ctid = any(array(select free.ctid from free));

-- name: put_back_tasks
-- They were not taken: try again after so many seconds.
with holds as materialized (
    select 1 from fairlead.leadership where term = %(term)s for share
), free as materialized (
    select t.id from fairlead.tasks t where t.id = any(%(ids)s) and exists (select from holds)
    for update of t skip locked
)
update fairlead.tasks t
set state = 'pending', claimed_term = null, reason = g.reason,
    due_at = clock_timestamp() + make_interval(secs => g.delay)
from unnest(%(ids)s::text[], %(delays)s::float8[], %(reasons)s::text[]) as g(id, delay, reason)
where t.id = g.id and t.state = 'claimed' and t.claimed_term = %(term)s and t.id = any(array(select free.id from free))
returning t.id;

-- name: refuse_tasks
-- They will never be taken; the row says why.
with holds as materialized (
    select 1 from fairlead.leadership where term = %(term)s for share
), free as materialized (
    select t.id from fairlead.tasks t where t.id = any(%(ids)s) and exists (select from holds)
    for update of t skip locked
)
update fairlead.tasks t
set state = 'refused', claimed_term = null, reason = g.reason, stands_for = g.stands_for,
    updated_at = clock_timestamp(), finished_at = clock_timestamp()
from unnest(%(ids)s::text[], %(reasons)s::text[], %(stands_for)s::text[]) as g(id, reason, stands_for)
where t.id = g.id and t.state = 'claimed' and t.claimed_term = %(term)s and t.id = any(array(select free.id from free))
returning t.id;

-- name: end_tasks
-- They end without having been sent: what they depend on ended badly.
with holds as materialized (
    select 1 from fairlead.leadership where term = %(term)s for share
), free as materialized (
    select t.id from fairlead.tasks t where t.id = any(%(ids)s) and exists (select from holds)
    for update of t skip locked
)
update fairlead.tasks t
set state = g.state, claimed_term = null, reason = g.reason, updated_at = clock_timestamp(),
    finished_at = clock_timestamp()
from unnest(%(ids)s::text[], %(states)s::text[], %(reasons)s::text[]) as g(id, state, reason)
where t.id = g.id and t.state = 'claimed' and t.claimed_term = %(term)s and t.id = any(array(select free.id from free))
returning t.id;

-- name: release_claims
-- What leaders before this one had claimed, or this one and lost sight of. Only after the recorder
-- has caught up, and while nobody sends anything.
with holds as materialized (
    select 1 from fairlead.leadership where term = %(term)s for share
), orphans as materialized (
    select t.id from fairlead.tasks t
    where t.state = 'claimed' and t.claimed_term <= %(term)s and exists (select from holds)
    limit %(limit)s
    for update of t skip locked
)
update fairlead.tasks t set state = 'pending', claimed_term = null
from orphans where t.id = orphans.id
returning t.id;

-- name: next_due
-- Seconds until the next row is due; null if none waits.
select extract(epoch from min(due_at) - clock_timestamp())::float8 as seconds
from fairlead.tasks where state = 'pending';

-- name: states_of
select id, state from fairlead.tasks where id = any(%(ids)s);

-- name: parents_of
-- What tasks may depend on: states, and for which task another one stands.
select id, state, stands_for from fairlead.tasks where id = any(%(ids)s);

-- name: unsent_members
-- Those of these ids whose flow is yet to be sent.
select m.id from (
    select unnest(f.member_ids) as id from fairlead.flows f where f.state = 'pending'
    union all
    select unnest(f.member_ids) from fairlead.flows f where f.state = 'claimed'
) m where m.id in (select unnest(%(ids)s::text[]));

-- name: claim_flow
with holds as materialized (
    select 1 from fairlead.leadership where term = %(term)s for share
), due as materialized (
    select f.id from fairlead.flows f
    where f.state = 'pending' and f.due_at <= statement_timestamp() and exists (select from holds)
    order by f.due_at, f.seq
    limit 1
    for update of f skip locked
)
update fairlead.flows f set state = 'claimed', claimed_term = %(term)s, pushes = f.pushes + 1
from due where f.id = due.id
returning f.id, f.tenant, f.name, f.draft, f.pushes,
    extract(epoch from clock_timestamp() - f.created_at)::float8 as age;

-- name: end_flow_push
-- `state` is running (the broker has it), pending (again after `delay` seconds), refused, or what the
-- flow came to if its members have all ended.
with holds as materialized (
    select 1 from fairlead.leadership where term = %(term)s for share
)
update fairlead.flows f
set state = %(state)s, claimed_term = null, reason = %(reason)s, updated_at = clock_timestamp(),
    checked_at = clock_timestamp(), due_at = clock_timestamp() + make_interval(secs => %(delay)s),
    finished_at = case when %(state)s in ('completed', 'dead', 'cancelled', 'refused')
                       then clock_timestamp() end
where f.id = %(id)s and f.state = 'claimed' and f.claimed_term = %(term)s and exists (select from holds)
returning f.id;

-- name: release_flow_claims
with holds as materialized (
    select 1 from fairlead.leadership where term = %(term)s for share
)
update fairlead.flows f set state = 'pending', claimed_term = null
where f.state = 'claimed' and f.claimed_term <= %(term)s and exists (select from holds)
returning f.id;
