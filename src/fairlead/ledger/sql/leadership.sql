-- name: take_leadership
-- Write a new term; no row if a later one stands here.
update fairlead.leadership set term = %(term)s, holder = %(holder)s, since = clock_timestamp()
where term <= %(term)s
returning term;

-- name: leadership
select term, holder, since from fairlead.leadership;

-- name: end_older_sessions
-- End the sessions that still have a share of the row for an earlier term: those of a leader that
-- stands still, or is cut off, in the middle of a transaction. A new term would wait for them.
select count(*) filter (where pg_terminate_backend(s.pid))::int as ended from (
    select distinct l.pid from pg_locks l
    where l.locktype = 'relation' and l.granted and l.pid <> pg_backend_pid()
      and l.database = (select d.oid from pg_database d where d.datname = current_database())
      and l.relation = 'fairlead.leadership'::regclass and l.mode = 'RowShareLock'
      and exists (select from fairlead.leadership where term < %(term)s)
) s;
