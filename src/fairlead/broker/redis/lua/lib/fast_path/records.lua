-- Fast path (skip it on a first reading, see fast_path/enqueue.lua): tasks and members of flows that have records are
-- taken in and released as they are stored.

-- @part enter_recorded
-- The short way in for tasks with a delay, a unique key or dependencies, of queues without caps on counts.
-- Writes records as they are stored, without making a task of each. Whatever is unusual goes through
-- accept.duplicate: a chosen id, a deadline, a fence, a key that is held, a result that is to be kept, a parent that
-- this call did not bring. With SHORT set to false all of them do, and every key and answer is the same:
-- tests/broker/redis/test_straight_way.py. Reads runs of ARGV, see enqueue.
local SHORT = true
-- Options (accept.duplicate): delay, deadline, policy, hold, window, key, fence (three), dependencies.
local OPTIONS = '^([^\30]*)\30([^\30]*)\30([^\30]*)\30([^\30]*)\30([^\30]*)\30([^\30]*)\30([^\30]*)\30[^\30]*\30[^\30]*\30(.*)$'
local NONE = {}
local stamp, fate, its_state, its_policy, its_due -- how values begin; the last beginning of a record, and of what it is
-- What the options at a place of ARGV say; holds and delays are numbers, and those that are none are 0.
local delays, deadlines_at, policies, holds, window_texts, keys_at, fences, edges_at
begins[#begins + 1] = function()
  stamp, its_state = pack('<dI', now, 0), nil
  delays, deadlines_at, policies, holds, window_texts, keys_at, fences, edges_at = {}, {}, {}, {}, {}, {}, {}, {}
end

-- Read ahead what is asked for tasks of the runs at `at`, where `ids` is all that the call brings: who holds their keys, what
-- they depend on, and when their tenants are looked at next.
function load_options(at, ids)
  local keys, places, parents, own, seen = {}, {}, {}, nil, {}
  local last, delay, deadline, policy, hold, window, key, fence, edges
  for _, from in ipairs(at) do
    for k = from + 2, from + 4 * tonumber(ARGV[from + 1]) - 2, 4 do
      local h, text = parsed(ARGV[k + 1]), ARGV[k + 3]
      if text ~= last then
        delay, deadline, policy, hold, window, key, fence, edges = match(text, OPTIONS)
        last, delay, policy, hold = text, tonumber(delay), tonumber(policy), tonumber(hold)
      end
      delays[k], deadlines_at[k], policies[k], holds[k] = delay, deadline, policy, hold
      window_texts[k], keys_at[k], fences[k], edges_at[k] = window, key, fence, edges
      if hold > 0 then keys[#keys + 1] = h.tenant .. SEP .. key end
      if edges ~= '' then
        if not own then
          own = {}
          for i = 1, #ids do own[ids[i]] = true end
        end
        for edge in string.gmatch(edges, '[^\29]+') do
          local id = match(edge, '^@[^\31]*\31(.*)$') or sub(edge, 2)
          if not own[id] then own[id], parents[#parents + 1] = true, id end
        end
      elseif delay ~= 0 and not seen[h.head] then
        seen[h.head], places[#places + 1] = true, h.queue .. SEP .. h.tenant
      end
    end
  end
  if #keys > 0 then unique.load_holders(keys) end
  if #places > 0 then asleep.load(places) end
  if #parents > 0 then
    load_tasks(parents)
    tie.load(parents)
  end
end

-- The parents of a task, if all of them are new in this call and nothing has happened to them since; in `lives` what life each is.
local function new_parents(edges, lives)
  local found, n = {}, 0
  for edge in string.gmatch(edges, '[^\29]+') do
    local id = sub(edge, 2)
    local value = fresh[id]
    if not value or tasks[id] then return nil end
    n = n + 1
    found[n], lives[n] = id, unpacked('<I', value, 9)
  end
  return found
end

-- How the record of such a task begins.
local function begin_record(state, policy, due)
  if state ~= its_state or policy ~= its_policy or due ~= its_due then
    its_state, its_policy, its_due = state, policy, due
    fate = pack(FATE, state, 0, policy, 0, 0, 0, 0, 0, 0, due, 0, 0, 0)
  end
  return fate
end

-- One task of the call, which stands at `k`; its receipt, or nothing if it is not for this way.
local function enter_one(ids, n, k, head, blob)
  local id, h, policy = ids[n], parsed(head), policies[k]
  if not SHORT or deadlines_at[k] ~= '' or fences[k] ~= '' or policy >= USES_RESULTS or tasks[id] ~= false or #blob > LARGE_BODY or #id ~= 32
    or find(id, ':', 1, true) then return nil end
  local t = ways[head]
  if t == nil then
    local known_queue = read_queue(h.queue)
    if not known_queue or not read_tenant(known_queue, h.tenant) then return nil end -- a refusal leaves nothing behind
    t = way_of(head)
  end
  if not t then return nil end
  local delay, hold, key, edges = delays[k], holds[k], keys_at[k], edges_at[k]
  local body, trace = unpacked('<II', blob)
  local size = body + trace
  if t[LIVE_BYTES] + COUNTED + size > t[TOP] then return nil end
  local held = hold > 0 and h.tenant .. SEP .. key
  if held and unique.holder(held) then return nil end
  local lives = edges == '' and NONE or {}
  local parents = edges == '' and NONE or new_parents(edges, lives)
  if not parents then return nil end
  local q, due = t[QUEUE], delay < 0 and -delay or now + delay
  if due <= now then due = 0 end
  local state = edges ~= '' and DEFERRED or due > 0 and SCHEDULED or QUEUED
  local value = stamp .. pack('<H', #head) .. head .. blob
  local r = begin_record(state, policy, due) .. pack(SELF, hold, 0, '', #key, key, 0, '', #head, head) .. pack(SIZE, 0, size, 0)
  local a, w = #accepted, #written
  accepted[a + 1], accepted[a + 2], written[w + 1], written[w + 2] = id, value, id, r
  fresh[id], values[id], latest[id], tasks[id] = value, value, r, nil
  if held then
    unique.set_holder(held, id)
    if hold == 3 then set_at(windows, held, now + tonumber(window_texts[k])) end
  end
  t[COUNT + state], q.counts[state] = t[COUNT + state] + 1, q.counts[state] + 1
  t[LIVE_BYTES], t[CHANGED], q.changed = t[LIVE_BYTES] + COUNTED + size, true, true
  stats.count(t, ENQUEUED, 1)
  if state == QUEUED then
    local back = added(line(t, h.level), L_BACK)
    back[#back + 1] = id
    local level = h.level
    if level < 4 then t[LEN + level] = t[LEN + level] + 1 else set_length(t, level, length_of(t, level) + 1) end
    t[SPECIAL] = t[SPECIAL] + 1
    made_queued(t)
  else
    asleep.put(h, id, state, due)
    for i = 1, #parents do dependency.link(id, parents[i], lives[i]) end
  end
  add_rows(group_of('enqueued', state, h.queue, 0, 0, ''), h.mark, ids, n, n)
  return 'a' .. state
end

-- The run at `i`, whose first task is the one behind `n`.
function enter_recorded(i, n, ids, receipts)
  for k = i + 2, i + 4 * tonumber(ARGV[i + 1]) - 2, 4 do
    n = n + 1
    receipts[n] = enter_one(ids, n, k, ARGV[k + 1], ARGV[k + 2])
      or accept(ids[n], ARGV[k + 1], ARGV[k + 2], ARGV[k + 3])
  end
  return n, i + 2 + 4 * tonumber(ARGV[i + 1])
end

-- @part lay_straight
-- Members of a flow become tasks as they are stored, without a task being made of each.
-- All of them are deferred, and those with the same head, policy and size have the same record. Whatever is unusual
-- goes through flow_members.lay_members: a chosen id, a deadline, a result that is to be kept, a parent that is not
-- deferred, a queue that warns. With SHORT set to false all of them do, and every key and answer is the same:
-- tests/broker/redis/test_straight_flows.py.
-- @include fast_path/records.releases
local SHORT = true
local MEMBER = '<BBHc0Hc0Ic0Ic0'
local parent, whose, life, is_member -- the record of the last parent; of this flow, whether it is a member, and its life
local begin, last_options, policy, delay -- options up to the dependencies, as they were last; what they say, policy false: something unusual
local head, h, t, opening -- of the last one; t is false if its queue warns
local record, its_policy, its_due, its_size, its_head -- the last record
local stamp
begins[#begins + 1] = function()
  parent, whose, head, record = nil, nil, nil, nil
  stamp = pack('<dI', now, 0)
end

-- The members of a page: id, head, options up to the dependencies, these, blob, and whether more of them follow.
function flows.opened(f, page)
  local ids, heads, options, edges, blobs, mores = {}, {}, {}, {}, {}, {}
  local behind, last, full = f.life > 0 and SEP .. f.life or '', nil, nil
  for i = 1, #page do
    local _, more, id, its, asked, blob = unpacked(MEMBER, page[i])
    if its ~= last then last, full = its, its .. behind end
    if not begin or sub(asked, 1, #begin) ~= begin then begin = match(asked, '^(.*\30)') end
    ids[i], heads[i], options[i], edges[i], blobs[i], mores[i] = id, full, begin, sub(asked, #begin + 1), blob, more
  end
  return { ids = ids, heads = heads, options = options, edges = edges, blobs = blobs, mores = mores }
end

-- Read what is needed of the parents in such texts; `own` has those that are about to be tasks.
function flows.load_parents(texts, own)
  if not SHORT then return end
  local seen, names, n, last = {}, {}, 0, ''
  for i = 1, own and #own or 0 do seen[own[i]] = true end
  for i = 1, #texts do
    if texts[i] ~= last then
      last = texts[i]
      for edge in string.gmatch(last, '[^\29]+') do
        local id = sub(edge, 2)
        if not seen[id] then n = n + 1 seen[id], names[n] = true, id end
      end
    end
  end
  if n == 0 then return end
  releases.load(names)
  tie.load(names)
end

-- The life of a parent that is deferred, and whether it is a member of the flow; nil if it is anything else.
local function deferred(f, id)
  local task = tasks[id]
  if task then -- the engine had to do with it
    if task.state ~= DEFERRED then return nil end
    return task.life, task.h.flow == f.id and task.h.flow_life == f.life
  end
  local r = task == nil and (latest[id] or raw[id])
  if r ~= parent or f ~= whose then
    if not r or r:byte(1) ~= DEFERRED then return nil end
    local _, _, _, _, its_head = unpacked(SELF, r, FATE_END + 1)
    local its = parsed(its_head)
    parent, whose, life, is_member = r, f, unpacked('<I', r, #r - SIZE_LENGTH + 1), its.flow == f.id and its.flow_life == f.life
  end
  return life, is_member
end

-- Ids and lives of the parents in such a text, if all of them are deferred, and whether one is a member; nil if not, or if one
-- is named twice.
function flows.deferred_parents(f, edges)
  if not SHORT or find(edges, '@', 1, true) then return nil end
  if edges ~= '' and not find(edges, '\29', 1, true) then
    local id = sub(edges, 2)
    local its_life, inside = deferred(f, id)
    if not its_life then return nil end
    return { id }, { its_life }, inside
  end
  local ids, lives, n, inside, seen = {}, {}, 0, false, {}
  for id in string.gmatch(edges, '[!?]([^\29]+)') do
    local its_life, its_member = deferred(f, id)
    if not its_life or seen[id] then return nil end
    n = n + 1
    ids[n], lives[n], inside, seen[id] = id, its_life, inside or its_member, true
  end
  return ids, lives, inside
end

-- Policy and delay, if there is nothing unusual about them.
local function asked(options)
  if options ~= last_options then
    local its_delay, deadline, its = match(options, '^([^\30]*)\30([^\30]*)\30([^\30]*)\30')
    last_options, policy, delay = options, deadline == '' and tonumber(its), tonumber(its_delay)
    if policy and policy >= USES_RESULTS then policy = false end
  end
  return policy, delay
end

-- The record of a deferred task like this.
local function record_of(policy, due, size)
  if policy ~= its_policy or due ~= its_due or size ~= its_size or head ~= its_head or not record then
    its_policy, its_due, its_size, its_head = policy, due, size, head
    record = pack(FATE, DEFERRED, 0, policy, 0, 0, 0, 0, 0, 0, due, 0, 0, 0) .. pack(SELF, 0, 0, '', 0, '', 0, '', #head, head)
      .. pack(SIZE, 0, size, 0)
  end
  return record
end

-- Members `first` to `last` with the same head are tasks now, `bytes` in all.
local function entered(ids, first, last, bytes)
  local q, n = t[QUEUE], last - first + 1
  flows.reserve(h.queue, h.tenant, -n)
  flows.reserve_bytes(h.queue, h.tenant, -bytes)
  t[COUNT + DEFERRED], q.counts[DEFERRED] = t[COUNT + DEFERRED] + n, q.counts[DEFERRED] + n
  t[LIVE_BYTES], t[CHANGED], q.changed = t[LIVE_BYTES] + bytes, true, true
  stats.count(t, ENQUEUED, n)
  asleep.defer(h, ids, first, last)
  add_rows(group_of('enqueued', DEFERRED, h.queue, 0, 0, ''), h.mark, ids, first, last)
end

-- Make tasks of members `first` to `last` as far as they have the same head, until one is unusual or `most` work is done; how many,
-- and how much work it was.
function flows.lay_straight(f, m, first, last, most)
  if not SHORT then return 0, 0 end
  local ids, heads, blobs, edges = m.ids, m.heads, m.blobs, m.edges
  if heads[first] ~= head then
    head = heads[first]
    h = parsed(head)
    opening = stamp .. pack('<H', #head) .. head
    local q = read_queue(h.queue, true)
    t = q.warn < 0 and make_tenant(q, h.tenant)
  end
  local i, work, bytes, a, w, guard = first, 0, 0, #accepted, #written, '\30' .. f.id
  local last_edges, parents, their_lives, inside
  while t and i <= last and work < most and heads[i] == head do
    local id, blob = ids[i], blobs[i]
    local its, wait = asked(m.options[i])
    if not its or tasks[id] ~= false or #id ~= 32 or find(id, ':', 1, true) then break end
    if edges[i] ~= last_edges then
      parents, their_lives, inside = flows.deferred_parents(f, edges[i])
      if not parents then break end
      last_edges = edges[i]
    end
    local body, trace = unpacked('<II', blob)
    local due = wait < 0 and -wait or now + wait
    local value, r = opening .. blob, record_of(its, due > now and due or 0, body + trace)
    accepted[a + 1], accepted[a + 2], written[w + 1], written[w + 2] = id, value, id, r
    fresh[id], values[id], latest[id], tasks[id] = value, value, r, nil
    a, w, bytes = a + 2, w + 2, bytes + COUNTED + body + trace
    for k = 1, #parents do dependency.link(id, parents[k], their_lives[k]) end
    work = work + 1 + #parents
    if flows.is_guarded(m.mores[i], its, inside) then
      dependency.link(id, guard, 0)
      work = work + 1
    end
    i = i + 1
  end
  if i > first then entered(ids, first, i - 1, bytes) end
  return i - first, work
end

-- Let a task that waits for many wait for more, if that is nothing unusual; whether it is not.
function flows.wait_straight(f, id, edges)
  local parents, lives = flows.deferred_parents(f, edges)
  if not parents or #parents == 0 or parent_edges.of(id) ~= '#' then return false end
  local members = {}
  for k = 1, #parents do members[k] = parents[k] .. SEP .. lives[k] end
  parent_edges.load_wide(id, members)
  for k = 1, #parents do
    local number = meta.edges + 1
    if parent_edges.add_wide(id, members[k], number) then
      meta.edges = number
      dependents.add(parents[k], lives[k], id, number, format('%.0f', number))
    end
  end
  return true
end

after[#after + 1] = function() whose, t, opening = nil, nil, nil end

-- @part releases
-- Deferred tasks whose last dependency is met go into their lines as they are stored.
-- With SHORT set to false the engine moves them one by one (dependency_release.go_on), and every key and answer is the same:
-- tests/broker/redis/test_straight_exchange.py.
-- @share releases
local SHORT = true
releases = {}
local AS_QUEUED, NO_MOMENT, FIRST_LIFE = '\3', ('\0'):rep(8), ('\0'):rep(4)
local heads -- record -> what its head says
local fits, laying -- records that can go this way, with so many flows being seen to
local ids, many, like, ended -- releases that have not been carried out: of tasks with this record, whose parents ended then
local counted, counted_at, counted_queue -- releases that have not been counted, of parents that ended then
local stamp
begins[#begins + 1] = function()
  heads, fits, laying, ids, many, like, counted = {}, {}, 0, {}, 0, nil, 0
  stamp = pack('<d', now)
end

-- Read the records of tasks, as far as no other is known of them in this call.
function releases.load(ids)
  local missing, n = {}, 0
  for i = 1, #ids do
    local id = ids[i]
    if tasks[id] == nil and raw[id] == nil and not latest[id] and not fresh[id] then n = n + 1 missing[n] = id end
  end
  if n == 0 then return end
  local found = call('HMGET', prefix .. 'records', unpack(missing))
  sound[prefix .. 'records'] = true
  for i = 1, n do if found[i] then raw[missing[i]] = found[i] end end
end

local function read_self(r)
  local h = heads[r]
  if not h then
    local _, _, _, _, head = unpacked(SELF, r, FATE_END + 1)
    h = parsed(head)
    heads[r] = h
  end
  return h
end

-- The record of a task that can go this way: deferred, with no delay that is not over, on the level it came with, and no member
-- of a flow while one is seen to.
function releases.record(id)
  local r = SHORT and tasks[id] == nil and not latest[id] and raw[id]
  if meta.laying ~= laying then fits, laying = {}, meta.laying end
  if r and fits[r] then return r end
  if not r or r:byte(1) ~= DEFERRED or r:byte(FATE_END + 1) >= MOVED then return nil end
  local due = sub(r, SINCE + 1, SINCE + 8)
  if due ~= NO_MOMENT and unpacked('<d', due) > now then return nil end
  if meta.laying > 0 and read_self(r).flow then return nil end
  fits[r] = true
  return r
end

-- Bring the tenants of tasks with such records into the cache, in one read per queue.
function releases.load_tenants(list)
  local names, last = {}, nil
  for i = 1, #list do
    local r = releases.record(list[i])
    if r and r ~= last then
      local its = read_self(r)
      local own = names[its.queue] or {}
      names[its.queue], own[#own + 1], last = own, its.tenant, r
    end
  end
  for name, own in pairs(names) do make_tenants(read_queue(name, true), own) end
end

-- What stands in a line behind the id of a task with this record.
local function behind_id(r)
  local low, high = r:byte(11, 12) -- the generation
  if low + high == 0 and sub(r, -SIZE_LENGTH, 3 - SIZE_LENGTH) == FIRST_LIFE then return nil end
  return SEP .. unpacked('<I', r, #r - SIZE_LENGTH + 1) .. '.' .. (low + 256 * high)
end

local function count()
  if counted > 0 then stats.times(stats.of(counted_queue), H_RELEASE, { max(0, now - counted_at) }, 1, 1, counted) end
  counted = 0
end

-- Carry out the releases so far. Whoever looks at what they change does that before.
function releases.carry_out()
  if many == 0 then return end
  local h = read_self(like)
  local q = read_queue(h.queue, true)
  local t, sleepers = make_tenant(q, h.tenant), asleep.of(h.queue, h.tenant)
  local level, n, m = h.level, many, #written
  local r, behind, back, over = AS_QUEUED .. sub(like, 2, SINCE) .. stamp .. sub(like, SINCE + 9), behind_id(like), added(line(t, level), L_BACK), sleepers.over
  local b, counts, gone = #back, q.counts, 0
  for i = 1, n do
    local id = ids[i]
    written[m + 1], written[m + 2], latest[id], back[b + i] = id, r, r, behind and id .. behind or id
    if over[id] ~= false then gone = gone + 1 end
    over[id], m = false, m + 2
  end
  sleepers.gone, sleepers.released, sleepers.changed = sleepers.gone + gone, (sleepers.released or 0) + n, true
  if q ~= counted_queue or ended ~= counted_at then
    count()
    counted_queue, counted_at = q, ended
  end
  counted = counted + n
  set_length(t, level, length_of(t, level) + n)
  t[SPECIAL], t[CHANGED], q.changed = t[SPECIAL] + n, true, true
  t[COUNT + DEFERRED], t[COUNT + QUEUED] = t[COUNT + DEFERRED] - n, t[COUNT + QUEUED] + n
  counts[DEFERRED], counts[QUEUED] = counts[DEFERRED] - n, counts[QUEUED] + n
  made_queued(t)
  add_rows(group_of('queued', QUEUED, q.name, 0, 0, ''), h.mark, ids, 1, n)
  many, like = 0, nil
end

-- Carry out and count all of them.
function releases.finish()
  releases.carry_out()
  count()
end

-- Let such a task go; its parent ended then.
function releases.place(id, r, at)
  if r ~= like or at ~= ended then
    releases.carry_out()
    like, ended = r, at
  end
  many = many + 1
  ids[many], latest[id], raw[id] = id, r, nil -- for now: it is about to be another
end

-- When a task ended that is still known, else now.
function releases.ended(id, life)
  local task, r = tasks[id], latest[id] or raw[id]
  if not task and r and unpacked('<I', r, #r - SIZE_LENGTH + 1) == life then task = { life = life, finished = unpacked('<d', r, 45) } end
  return task and task.life == life and task.finished > 0 and task.finished or now
end
