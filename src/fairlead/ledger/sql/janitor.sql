-- name: stuck_tasks
-- A page of the rows that have been running for longer than `older` seconds, newest first.
select id, last_entry, last_index, flow, created_at, seq from fairlead.tasks
where state = 'running' and updated_at < statement_timestamp() - make_interval(secs => %(older)s)
  and (created_at, seq) < (%(before)s, %(before_seq)s) -- @before
order by created_at desc, seq desc limit %(limit)s;

-- name: recover_tasks
-- The broker does not know them: send them again, three times at most.
with holds as materialized (
    select 1 from fairlead.leadership where term = %(term)s for share
), free as materialized (
    select t.id from fairlead.tasks t where t.id = any(%(ids)s) and exists (select from holds)
    for update of t skip locked
)
update fairlead.tasks t
set state = case when t.recoveries < 3 and t.submission is not null then 'pending' else 'dead' end,
    recoveries = least(t.recoveries + 1, 3), reason = 'lost', due_at = clock_timestamp(),
    updated_at = clock_timestamp(),
    finished_at = case when t.recoveries < 3 and t.submission is not null then null
                       else clock_timestamp() end
from unnest(%(ids)s::text[], %(entries)s::bigint[], %(indexes)s::int[]) as g(id, entry, index)
where t.id = g.id and t.state = 'running' and (t.last_entry, t.last_index) = (g.entry, g.index)
  and t.id = any(array(select free.id from free))
returning t.id, t.state;

-- name: delete_old_tasks
-- But for those that a task depends on which is yet to be sent: how they ended decides about it.
with holds as materialized (
    select 1 from fairlead.leadership where term = %(term)s for share
), old as materialized (
    select t.id from fairlead.tasks t
    where t.finished_at < statement_timestamp() - make_interval(secs => %(keep)s)
      and exists (select from holds)
      and not exists (select from fairlead.tasks c where c.state = 'pending'
                      and c.depends_on <> '{}' and c.depends_on @> array[t.id])
    order by t.finished_at limit %(limit)s for update of t skip locked
)
delete from fairlead.tasks t using old where t.id = old.id;

-- name: delete_old_flows
with holds as materialized (
    select 1 from fairlead.leadership where term = %(term)s for share
), old as materialized (
    select f.id from fairlead.flows f
    where f.finished_at < statement_timestamp() - make_interval(secs => %(keep)s)
      and exists (select from holds)
    order by f.finished_at limit %(limit)s for update of f skip locked
)
delete from fairlead.flows f using old where f.id = old.id;

-- name: delete_old_workers
-- Those that nobody has heard of for so long that no row that is kept can name them.
with holds as materialized (
    select 1 from fairlead.leadership where term = %(term)s for share
), old as materialized (
    select w.incarnation from fairlead.workers w
    where w.seen_at < statement_timestamp() - make_interval(secs => 2 * %(keep)s)
      and exists (select from holds)
    order by w.seen_at limit %(limit)s for update of w skip locked
)
delete from fairlead.workers w using old where w.incarnation = old.incarnation;
