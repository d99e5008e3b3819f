-- name: write_status
insert into fairlead.manager_status as s (role, term, counts) values (%(role)s, %(term)s, %(counts)s)
on conflict (role) do update
set term = excluded.term, counts = excluded.counts, updated_at = clock_timestamp()
where s.term <= excluded.term;

-- name: status
select role, term, counts, extract(epoch from clock_timestamp() - updated_at)::float8 as age
from fairlead.manager_status order by role;

-- name: lag
-- How many rows are due and not sent yet, counted to 10,000, and since when the first of them is.
select (select count(*) from (select from fairlead.tasks where state = 'pending'
            and due_at <= statement_timestamp() limit 10000) d) as due,
       (select extract(epoch from clock_timestamp() - min(due_at))::float8 from fairlead.tasks
            where state = 'pending' and due_at <= statement_timestamp()) as oldest_seconds,
       (select count(*) from (select from fairlead.tasks where state = 'claimed' limit 10000) c) as claimed;
