-- name: take_leadership
-- Write a new term; no row if a later one stands here.
update fairlead.leadership set term = %(term)s, holder = %(holder)s, since = clock_timestamp()
where term <= %(term)s
returning term;

-- name: leadership
select term, holder, since from fairlead.leadership;
