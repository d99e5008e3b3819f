-- Fast path (see enqueue.lua): tasks and members of flows that have records are
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
    for id_at = from + 2, from + 4 * tonumber(ARGV[from + 1]) - 2, 4 do
      local fields, text = parsed(ARGV[id_at + 1]), ARGV[id_at + 3]
      if text ~= last then
        delay, deadline, policy, hold, window, key, fence, edges = match(text, OPTIONS)
        last, delay, policy, hold = text, tonumber(delay), tonumber(policy), tonumber(hold)
      end
      delays[id_at], deadlines_at[id_at], policies[id_at], holds[id_at] = delay, deadline, policy, hold
      window_texts[id_at], keys_at[id_at], fences[id_at], edges_at[id_at] = window, key, fence, edges
      if hold > 0 then keys[#keys + 1] = fields.tenant .. SEP .. key end
      if edges ~= '' then
        if not own then
          own = {}
          for i = 1, #ids do own[ids[i]] = true end
        end
        for edge in string.gmatch(edges, '[^\29]+') do
          local id = match(edge, '^@[^\31]*\31(.*)$') or sub(edge, 2)
          if not own[id] then own[id], parents[#parents + 1] = true, id end
        end
      elseif delay ~= 0 and not seen[fields.head] then
        seen[fields.head], places[#places + 1] = true, fields.queue .. SEP .. fields.tenant
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
  local found, count = {}, 0
  for edge in string.gmatch(edges, '[^\29]+') do
    local id = sub(edge, 2)
    local value = fresh[id]
    if not value or tasks[id] then return nil end
    count = count + 1
    found[count], lives[count] = id, unpacked('<I', value, 9)
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

-- One task of the call, whose id stands at `id_at`; its receipt, or nothing if it is not for this way.
local function enter_one(ids, place, id_at, head, blob)
  local id, fields, policy = ids[place], parsed(head), policies[id_at]
  if not SHORT or deadlines_at[id_at] ~= '' or fences[id_at] ~= '' or policy >= USES_RESULTS or tasks[id] ~= false or #blob > LARGE_BODY
    or #id ~= 32 or find(id, ':', 1, true) then return nil end
  local tenant = ways[head]
  if tenant == nil then
    local known_queue = read_queue(fields.queue)
    if not known_queue or not read_tenant(known_queue, fields.tenant) then return nil end -- a refusal leaves nothing behind
    tenant = way_of(head)
  end
  if not tenant then return nil end
  local delay, hold, key, edges = delays[id_at], holds[id_at], keys_at[id_at], edges_at[id_at]
  local body, trace = unpacked('<II', blob)
  local size = body + trace
  if tenant[LIVE_BYTES] + COUNTED + size > tenant[TOP] then return nil end
  local held = hold > 0 and fields.tenant .. SEP .. key
  if held and unique.holder(held) then return nil end
  local lives = edges == '' and NONE or {}
  local parents = edges == '' and NONE or new_parents(edges, lives)
  if not parents then return nil end
  local queue, due = tenant[QUEUE], delay < 0 and -delay or now + delay
  if due <= now then due = 0 end
  local state = edges ~= '' and DEFERRED or due > 0 and SCHEDULED or QUEUED
  local value = stamp .. pack('<H', #head) .. head .. blob
  local record = begin_record(state, policy, due) .. pack(SELF, hold, 0, '', #key, key, 0, '', #head, head) .. pack(SIZE, 0, size, 0)
  local accepted_size, written_size = #accepted, #written
  accepted[accepted_size + 1], accepted[accepted_size + 2], written[written_size + 1], written[written_size + 2] = id, value, id, record
  fresh[id], values[id], latest[id], tasks[id] = value, value, record, nil
  if held then
    unique.set_holder(held, id)
    if hold == 3 then set_at(windows, held, now + tonumber(window_texts[id_at])) end
  end
  tenant[COUNT + state], queue.counts[state] = tenant[COUNT + state] + 1, queue.counts[state] + 1
  tenant[LIVE_BYTES], tenant[CHANGED], queue.changed = tenant[LIVE_BYTES] + COUNTED + size, true, true
  stats.count(tenant, ENQUEUED, 1)
  if state == QUEUED then
    local back = added(line(tenant, fields.level), L_BACK)
    back[#back + 1] = id
    local level = fields.level
    if level < 4 then tenant[LEN + level] = tenant[LEN + level] + 1 else set_length(tenant, level, length_of(tenant, level) + 1) end
    tenant[SPECIAL] = tenant[SPECIAL] + 1
    made_queued(tenant)
  else
    asleep.put(fields, id, state, due)
    for i = 1, #parents do dependency.link(id, parents[i], lives[i]) end
  end
  add_rows(group_of('enqueued', state, fields.queue, 0, 0, ''), fields.mark, ids, place, place)
  return 'a' .. state
end

-- The run at ARGV[arg], whose first task is the one behind `done`.
function enter_recorded(arg, done, ids, receipts)
  for id_at = arg + 2, arg + 4 * tonumber(ARGV[arg + 1]) - 2, 4 do
    done = done + 1
    receipts[done] = enter_one(ids, done, id_at, ARGV[id_at + 1], ARGV[id_at + 2])
      or accept(ids[done], ARGV[id_at + 1], ARGV[id_at + 2], ARGV[id_at + 3])
  end
  return done, arg + 2 + 4 * tonumber(ARGV[arg + 1])
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
-- Options up to the dependencies, as they were last; what they say, policy false: something unusual.
local begin, last_options, policy, delay
local head, fields, tenant, opening -- of the last one; tenant is false if its queue warns
local record, its_policy, its_due, its_size, its_head -- the last record
local stamp
begins[#begins + 1] = function()
  parent, whose, head, record = nil, nil, nil, nil
  stamp = pack('<dI', now, 0)
end

-- The members of a page: id, head, options up to the dependencies, these, blob, and whether more of them follow.
function flows.opened(flow, page)
  local ids, heads, options, edges, blobs, mores = {}, {}, {}, {}, {}, {}
  local behind, last, full = flow.life > 0 and SEP .. flow.life or '', nil, nil
  for i = 1, #page do
    local _, more, id, member_head, asked, blob = unpacked(MEMBER, page[i])
    if member_head ~= last then last, full = member_head, member_head .. behind end
    if not begin or sub(asked, 1, #begin) ~= begin then begin = match(asked, '^(.*\30)') end
    ids[i], heads[i], options[i], edges[i], blobs[i], mores[i] = id, full, begin, sub(asked, #begin + 1), blob, more
  end
  return { ids = ids, heads = heads, options = options, edges = edges, blobs = blobs, mores = mores }
end

-- Read what is needed of the parents in such texts; `own` has those that are about to be tasks.
function flows.load_parents(texts, own)
  if not SHORT then return end
  local seen, names, count, last = {}, {}, 0, ''
  for i = 1, own and #own or 0 do seen[own[i]] = true end
  for i = 1, #texts do
    if texts[i] ~= last then
      last = texts[i]
      for edge in string.gmatch(last, '[^\29]+') do
        local id = sub(edge, 2)
        if not seen[id] then count = count + 1 seen[id], names[count] = true, id end
      end
    end
  end
  if count == 0 then return end
  releases.load(names)
  tie.load(names)
end

-- The life of a parent that is deferred, and whether it is a member of the flow; nil if it is anything else.
local function deferred(flow, id)
  local task = tasks[id]
  if task then -- the engine had to do with it
    if task.state ~= DEFERRED then return nil end
    return task.life, task.fields.flow == flow.id and task.fields.flow_life == flow.life
  end
  local its_record = task == nil and (latest[id] or raw[id])
  if its_record ~= parent or flow ~= whose then
    if not its_record or its_record:byte(1) ~= DEFERRED then return nil end
    local _, _, _, _, its_head = unpacked(SELF, its_record, FATE_END + 1)
    local parent_fields = parsed(its_head)
    parent, whose, life, is_member = its_record, flow, unpacked('<I', its_record, #its_record - SIZE_LENGTH + 1),
      parent_fields.flow == flow.id and parent_fields.flow_life == flow.life
  end
  return life, is_member
end

-- Ids and lives of the parents in such a text, if all of them are deferred, and whether one is a member; nil if not, or if one
-- is named twice.
function flows.deferred_parents(flow, edges)
  if not SHORT or find(edges, '@', 1, true) then return nil end
  if edges ~= '' and not find(edges, '\29', 1, true) then
    local id = sub(edges, 2)
    local its_life, inside = deferred(flow, id)
    if not its_life then return nil end
    return { id }, { its_life }, inside
  end
  local ids, lives, count, inside, seen = {}, {}, 0, false, {}
  for id in string.gmatch(edges, '[!?]([^\29]+)') do
    local its_life, its_member = deferred(flow, id)
    if not its_life or seen[id] then return nil end
    count = count + 1
    ids[count], lives[count], inside, seen[id] = id, its_life, inside or its_member, true
  end
  return ids, lives, inside
end

-- Policy and delay, if there is nothing unusual about them.
local function asked(options)
  if options ~= last_options then
    local its_delay, deadline, policy_text = match(options, '^([^\30]*)\30([^\30]*)\30([^\30]*)\30')
    last_options, policy, delay = options, deadline == '' and tonumber(policy_text), tonumber(its_delay)
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
  local queue, count = tenant[QUEUE], last - first + 1
  flows.reserve(fields.queue, fields.tenant, -count)
  flows.reserve_bytes(fields.queue, fields.tenant, -bytes)
  tenant[COUNT + DEFERRED], queue.counts[DEFERRED] = tenant[COUNT + DEFERRED] + count, queue.counts[DEFERRED] + count
  tenant[LIVE_BYTES], tenant[CHANGED], queue.changed = tenant[LIVE_BYTES] + bytes, true, true
  stats.count(tenant, ENQUEUED, count)
  asleep.defer(fields, ids, first, last)
  add_rows(group_of('enqueued', DEFERRED, fields.queue, 0, 0, ''), fields.mark, ids, first, last)
end

-- Make tasks of members `first` to `last` as far as they have the same head, until one is unusual or `most` work is done; how many,
-- and how much work it was.
function flows.lay_straight(flow, members, first, last, most)
  if not SHORT then return 0, 0 end
  local ids, heads, blobs, edges = members.ids, members.heads, members.blobs, members.edges
  if heads[first] ~= head then
    head = heads[first]
    fields = parsed(head)
    opening = stamp .. pack('<H', #head) .. head
    local queue = read_queue(fields.queue, true)
    tenant = queue.warn < 0 and make_tenant(queue, fields.tenant)
  end
  local place, work, bytes, accepted_size, written_size, guard = first, 0, 0, #accepted, #written, '\30' .. flow.id
  local last_edges, parents, their_lives, inside
  while tenant and place <= last and work < most and heads[place] == head do
    local id, blob = ids[place], blobs[place]
    local own_policy, wait = asked(members.options[place])
    if not own_policy or tasks[id] ~= false or #id ~= 32 or find(id, ':', 1, true) then break end
    if edges[place] ~= last_edges then
      parents, their_lives, inside = flows.deferred_parents(flow, edges[place])
      if not parents then break end
      last_edges = edges[place]
    end
    local body, trace = unpacked('<II', blob)
    local due = wait < 0 and -wait or now + wait
    local value, its_record = opening .. blob, record_of(own_policy, due > now and due or 0, body + trace)
    accepted[accepted_size + 1], accepted[accepted_size + 2], written[written_size + 1], written[written_size + 2]
      = id, value, id, its_record
    fresh[id], values[id], latest[id], tasks[id] = value, value, its_record, nil
    accepted_size, written_size, bytes = accepted_size + 2, written_size + 2, bytes + COUNTED + body + trace
    for k = 1, #parents do dependency.link(id, parents[k], their_lives[k]) end
    work = work + 1 + #parents
    if flows.is_guarded(members.mores[place], own_policy, inside) then
      dependency.link(id, guard, 0)
      work = work + 1
    end
    place = place + 1
  end
  if place > first then entered(ids, first, place - 1, bytes) end
  return place - first, work
end

-- Let a task that waits for many wait for more, if that is nothing unusual; whether it is not.
function flows.wait_straight(flow, id, edges)
  local parents, lives = flows.deferred_parents(flow, edges)
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

after[#after + 1] = function() whose, tenant, opening = nil, nil, nil end

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
  local missing, count = {}, 0
  for i = 1, #ids do
    local id = ids[i]
    if tasks[id] == nil and raw[id] == nil and not latest[id] and not fresh[id] then count = count + 1 missing[count] = id end
  end
  if count == 0 then return end
  local found = call('HMGET', prefix .. 'records', unpack(missing))
  sound[prefix .. 'records'] = true
  for i = 1, count do if found[i] then raw[missing[i]] = found[i] end end
end

local function read_self(record)
  local fields = heads[record]
  if not fields then
    local _, _, _, _, head = unpacked(SELF, record, FATE_END + 1)
    fields = parsed(head)
    heads[record] = fields
  end
  return fields
end

-- The record of a task that can go this way: deferred, with no delay that is not over, on the level it came with, and no member
-- of a flow while one is seen to.
function releases.record(id)
  local record = SHORT and tasks[id] == nil and not latest[id] and raw[id]
  if meta.laying ~= laying then fits, laying = {}, meta.laying end
  if record and fits[record] then return record end
  if not record or record:byte(1) ~= DEFERRED or record:byte(FATE_END + 1) >= MOVED then return nil end
  local due = sub(record, SINCE + 1, SINCE + 8)
  if due ~= NO_MOMENT and unpacked('<d', due) > now then return nil end
  if meta.laying > 0 and read_self(record).flow then return nil end
  fits[record] = true
  return record
end

-- Bring the tenants of tasks with such records into the cache, in one read per queue.
function releases.load_tenants(list)
  local names, last = {}, nil
  for i = 1, #list do
    local record = releases.record(list[i])
    if record and record ~= last then
      local fields = read_self(record)
      local own = names[fields.queue] or {}
      names[fields.queue], own[#own + 1], last = own, fields.tenant, record
    end
  end
  for name, own in pairs(names) do make_tenants(read_queue(name, true), own) end
end

-- What stands in a line behind the id of a task with this record.
local function behind_id(record)
  local low, high = record:byte(11, 12) -- the generation
  if low + high == 0 and sub(record, -SIZE_LENGTH, 3 - SIZE_LENGTH) == FIRST_LIFE then return nil end
  return SEP .. unpacked('<I', record, #record - SIZE_LENGTH + 1) .. '.' .. (low + 256 * high)
end

local function count()
  if counted > 0 then stats.times(stats.of(counted_queue), H_RELEASE, { max(0, now - counted_at) }, 1, 1, counted) end
  counted = 0
end

-- Carry out the releases so far. Whoever looks at what they change does that before.
function releases.carry_out()
  if many == 0 then return end
  local fields = read_self(like)
  local queue = read_queue(fields.queue, true)
  local tenant, sleepers = make_tenant(queue, fields.tenant), asleep.of(fields.queue, fields.tenant)
  local level, total, written_size = fields.level, many, #written
  local record, behind, back, over
    = AS_QUEUED .. sub(like, 2, SINCE) .. stamp .. sub(like, SINCE + 9), behind_id(like), added(line(tenant, level), L_BACK), sleepers.over
  local back_size, counts, gone = #back, queue.counts, 0
  for i = 1, total do
    local id = ids[i]
    written[written_size + 1], written[written_size + 2], latest[id], back[back_size + i]
      = id, record, record, behind and id .. behind or id
    if over[id] ~= false then gone = gone + 1 end
    over[id], written_size = false, written_size + 2
  end
  sleepers.gone, sleepers.released, sleepers.changed = sleepers.gone + gone, (sleepers.released or 0) + total, true
  if queue ~= counted_queue or ended ~= counted_at then
    count()
    counted_queue, counted_at = queue, ended
  end
  counted = counted + total
  set_length(tenant, level, length_of(tenant, level) + total)
  tenant[SPECIAL], tenant[CHANGED], queue.changed = tenant[SPECIAL] + total, true, true
  tenant[COUNT + DEFERRED], tenant[COUNT + QUEUED] = tenant[COUNT + DEFERRED] - total, tenant[COUNT + QUEUED] + total
  counts[DEFERRED], counts[QUEUED] = counts[DEFERRED] - total, counts[QUEUED] + total
  made_queued(tenant)
  add_rows(group_of('queued', QUEUED, queue.name, 0, 0, ''), fields.mark, ids, 1, total)
  many, like = 0, nil
end

-- Carry out and count all of them.
function releases.finish()
  releases.carry_out()
  count()
end

-- Let such a task go; its parent ended then.
function releases.place(id, record, at)
  if record ~= like or at ~= ended then
    releases.carry_out()
    like, ended = record, at
  end
  many = many + 1
  ids[many], latest[id], raw[id] = id, record, nil -- for now: it is about to be another
end

-- When a task ended that is still known, else now.
function releases.ended(id, life)
  local task, record = tasks[id], latest[id] or raw[id]
  if not task and record and unpacked('<I', record, #record - SIZE_LENGTH + 1) == life then
    task = { life = life, finished = unpacked('<d', record, 45) }
  end
  return task and task.life == life and task.finished > 0 and task.finished or now
end
