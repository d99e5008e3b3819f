-- The record of tasks, and what the manager keeps beside it.

create table fairlead.tasks (
    id            text primary key,
    seq           bigint generated always as identity,
    state         text not null,
    queue         text not null,
    tenant        text not null,
    name          text not null default '',
    level         smallint not null default 2,
    flow          text not null default '',
    -- What is sent to the broker, without delay and deadline. Null: only the broker ever had it.
    submission    bytea,
    -- A digest of what makes two submissions the same.
    content       bytea,
    depends_on    text[] not null default '{}',
    created_at    timestamptz not null default clock_timestamp(),
    due_at        timestamptz not null default clock_timestamp(),
    deadline_at   timestamptz,
    -- The last change of state, by the broker's clock.
    updated_at    timestamptz not null default clock_timestamp(),
    started_at    timestamptz,
    finished_at   timestamptz,
    -- The term of the leader that is sending it.
    claimed_term  bigint,
    pushes        integer not null default 0,
    -- How often the janitor sent it again because nobody ran it any more.
    recoveries    smallint not null default 0,
    attempts      integer not null default 0,
    worker        text not null default '',
    reason        text not null default '',
    error_type    text not null default '',
    error         text not null default '',
    -- Refused as a duplicate: the task that stands for it.
    stands_for    text not null default '',
    -- The last event that is in the row. Numbers of entries never come again, in any generation.
    last_entry    bigint not null default 0,
    last_index    integer not null default -1,
    -- What happened, one packed array behind the other.
    log           bytea not null default '',

    constraint tasks_state check (state in ('pending', 'claimed', 'scheduled', 'deferred', 'queued',
        'running', 'retrying', 'completed', 'dead', 'cancelled', 'refused')),
    constraint tasks_claimed check ((state = 'claimed') = (claimed_term is not null)),
    constraint tasks_finished check
        ((state in ('completed', 'dead', 'cancelled', 'refused')) = (finished_at is not null)),
    constraint tasks_sendable check (state not in ('pending', 'claimed') or submission is not null),
    constraint tasks_refused check (state <> 'refused' or reason <> ''),
    constraint tasks_recoveries check (recoveries between 0 and 3)
) with (fillfactor = 80);

-- What a role of the manager looks for is never scanned for.
create index tasks_due on fairlead.tasks (due_at, seq) where state = 'pending';
create index tasks_due_by_tenant on fairlead.tasks (tenant, due_at, seq) where state = 'pending';
create index tasks_parents on fairlead.tasks using gin (depends_on)
    where state = 'pending' and depends_on <> '{}';
create index tasks_kept on fairlead.tasks (finished_at) where finished_at is not null;

-- For the auditor, the janitor and people: newest first, page by page.
create index tasks_by_state on fairlead.tasks (state, created_at, seq);
create index tasks_by_error on fairlead.tasks using gin (to_tsvector('simple', error_type || ' ' || error)) where error_type <> '';

-- What pages are found by and never changes. Were it in indexes of the table of tasks, each change of
-- a state would write all of them anew. Only triggers of that table write here.
create table fairlead.listings (
    created_at timestamptz not null,
    seq        bigint not null,
    id         text not null,
    queue      text not null,
    tenant     text not null,
    name       text not null,
    primary key (created_at, seq)
);
create index listings_by_queue on fairlead.listings (queue, created_at, seq);
create index listings_by_tenant on fairlead.listings (tenant, created_at, seq);
create index listings_by_name on fairlead.listings (name, created_at, seq);

-- They run with the rights of the owner, so that whoever writes tasks needs none for listings.
create function fairlead.list_added() returns trigger
language plpgsql security definer set search_path = '' as $$
begin
    insert into fairlead.listings (created_at, seq, id, queue, tenant, name)
    select a.created_at, a.seq, a.id, a.queue, a.tenant, a.name from added a;
    return null;
end
$$;
create trigger list_added after insert on fairlead.tasks
    referencing new table as added for each statement execute function fairlead.list_added();

create function fairlead.list_changed() returns trigger
language plpgsql security definer set search_path = '' as $$
begin
    update fairlead.listings l
    set created_at = new.created_at, seq = new.seq, id = new.id, queue = new.queue,
        tenant = new.tenant, name = new.name
    where l.created_at = old.created_at and l.seq = old.seq;
    return null;
end
$$;
create trigger list_changed after update of created_at, seq, id, queue, tenant, name on fairlead.tasks
    for each row when ((old.created_at, old.seq, old.id, old.queue, old.tenant, old.name)
        <> (new.created_at, new.seq, new.id, new.queue, new.tenant, new.name))
    execute function fairlead.list_changed();

create function fairlead.unlist_removed() returns trigger
language plpgsql security definer set search_path = '' as $$
begin
    delete from fairlead.listings l using removed r where l.created_at = r.created_at and l.seq = r.seq;
    return null;
end
$$;
create trigger unlist_removed after delete on fairlead.tasks
    referencing old table as removed for each statement execute function fairlead.unlist_removed();

-- Others must not make triggers of these for tables of their own.
revoke execute on function fairlead.list_added(), fairlead.list_changed(), fairlead.unlist_removed()
    from public;

create table fairlead.flows (
    id            text primary key,
    seq           bigint generated always as identity,
    tenant        text not null,
    name          text not null default '',
    state         text not null,
    draft         bytea not null,
    members       integer not null,
    -- Before the broker has the flow its members have no rows: others may depend on them all the same.
    member_ids    text[] not null default '{}',
    created_at    timestamptz not null default clock_timestamp(),
    due_at        timestamptz not null default clock_timestamp(),
    updated_at    timestamptz not null default clock_timestamp(),
    checked_at    timestamptz not null default clock_timestamp(),
    finished_at   timestamptz,
    claimed_term  bigint,
    pushes        integer not null default 0,
    reason        text not null default '',

    constraint flows_state check
        (state in ('pending', 'claimed', 'running', 'completed', 'dead', 'cancelled', 'refused')),
    constraint flows_claimed check ((state = 'claimed') = (claimed_term is not null)),
    constraint flows_finished check
        ((state in ('completed', 'dead', 'cancelled', 'refused')) = (finished_at is not null)),
    constraint flows_refused check (state <> 'refused' or reason <> '')
);

create index flows_due on fairlead.flows (due_at, seq) where state = 'pending';
create index flows_claimed on fairlead.flows (claimed_term) where state = 'claimed';
create index flows_running on fairlead.flows (checked_at) where state = 'running';
create index flows_kept on fairlead.flows (finished_at) where finished_at is not null;

-- One row. Every effect of a manager is refused unless its term stands here.
create table fairlead.leadership (
    one    boolean primary key default true check (one),
    term   bigint not null,
    holder text not null,
    since  timestamptz not null default clock_timestamp()
);
insert into fairlead.leadership (term, holder) values (0, '');

-- How far the recorder has read, in each shard of the broker.
create table fairlead.places (
    shard      text primary key,
    generation text not null,
    entry      bigint not null,
    index      integer not null,
    -- Of the server that all unfinished rows were last compared with; empty: since then it is another.
    replication text not null default '',
    updated_at timestamptz not null default clock_timestamp()
);

create table fairlead.workers (
    incarnation text primary key,
    host        text not null default '',
    pid         integer not null default 0,
    started_at  timestamptz,
    seen_at     timestamptz not null default clock_timestamp()
);
create index workers_seen on fairlead.workers (seen_at);

-- What the roles of the leader have done, for people.
create table fairlead.manager_status (
    role       text primary key,
    term       bigint not null,
    counts     jsonb not null default '{}',
    updated_at timestamptz not null default clock_timestamp()
);

-- What a caller's transaction runs. One text, so that every driver can pass it: an array of objects
-- with id, queue, tenant, name, level, submission and content (base64), depends_on, delay and
-- deadline (seconds from now). Answers in the order given: accepted, duplicate (the same task is
-- here already) or conflict (another one is). Later releases add functions, and never change this.
create function fairlead.enqueue_tasks(batch json) returns table (task_id text, code text)
language plpgsql as $$
declare
    moment   timestamptz := clock_timestamp();
    accepted text[];
    is_due   boolean;
begin
    with given as (
        select * from rows from (json_to_recordset(batch) as (
            id text, queue text, tenant text, name text, level smallint, submission text,
            content text, depends_on text[], delay double precision, deadline double precision
        )) with ordinality as g(id, queue, tenant, name, level, submission, content, depends_on,
                                delay, deadline, place)
    ), added as (
        insert into fairlead.tasks as t (id, state, queue, tenant, name, level, submission, content,
                                         depends_on, created_at, due_at, deadline_at, updated_at)
        select g.id, 'pending', g.queue, g.tenant, g.name, g.level, decode(g.submission, 'base64'),
               decode(g.content, 'base64'), coalesce(g.depends_on, '{}'), moment,
               moment + make_interval(secs => coalesce(g.delay, 0)),
               moment + make_interval(secs => g.deadline), moment
        from given g order by g.place
        on conflict (id) do nothing
        returning t.id, t.due_at
    )
    select array_agg(a.id), bool_or(a.due_at <= moment + interval '5 seconds')
    into accepted, is_due from added a;

    if is_due then
        perform pg_notify('fairlead_due', '');
    end if;

    if cardinality(accepted) = json_array_length(batch) then  -- nearly always
        return query select a.id, 'accepted' from unnest(accepted) as a(id);
        return;
    end if;

    -- Another statement: it sees what a transaction wrote that the insert had to wait for.
    return query
    with given as (
        select g.id, decode(g.content, 'base64') as content, g.place
        from rows from (json_to_recordset(batch) as (id text, content text))
             with ordinality as g(id, content, place)
    )
    select g.id,
           case when t.content is distinct from g.content then 'conflict'
                when g.id = any (accepted)
                     and g.place = min(g.place) over (partition by g.id) then 'accepted'
                else 'duplicate' end
    from given g join fairlead.tasks t on t.id = g.id
    order by g.place;
end
$$;

-- The same for a flow: its draft as the client packed it, in base64.
create function fairlead.enqueue_flow(flow json) returns text
language plpgsql as $$
declare
    is_new boolean;
begin
    insert into fairlead.flows (id, tenant, name, state, draft, members, member_ids)
    values (flow ->> 'id', flow ->> 'tenant', flow ->> 'name', 'pending',
            decode(flow ->> 'draft', 'base64'), (flow ->> 'members')::integer,
            array(select json_array_elements_text(coalesce(flow -> 'ids', '[]'))))
    on conflict (id) do nothing
    returning true into is_new;
    if is_new then
        perform pg_notify('fairlead_due', '');
        return 'accepted';
    end if;
    return 'duplicate';
end
$$;
