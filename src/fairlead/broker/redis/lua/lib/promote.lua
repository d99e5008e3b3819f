-- What waits for a moment: where it is kept, how it is queued when it is due, and when that is.

-- @part asleep
-- What waits without standing in a line, by tenant and in the order of time.
-- 'asleep:' of a tenant holds its scheduled and retrying tasks by the moment they are due, and the deferred ones
-- behind all of these. 'due' says when a tenant has to be looked at: at the earliest of these moments. If more is due
-- than one call promotes, that is the moment at which it was looked at last, so that tenants take turns.
-- @share due asleep
-- @const LAST_ASLEEP=9e18
local looks, stale -- tenant -> its place in 'due' as it was read; those whose place has to be found anew
asleep = {}
begins[#begins + 1] = function()
  due = timed('due')
  looks, stale = {}, {}
end

function asleep.of(queue, tenant) return agenda('asleep:' .. queue .. ':' .. tenant) end

-- When a tenant has to be looked at, or false.
local function look(key)
  local at = due.over[key]
  if at ~= nil then return at end
  if looks[key] == nil then looks[key], sound[due.key] = tonumber(call('ZSCORE', due.key, key) or nil) or false, true end
  return looks[key]
end

-- Read ahead the places of tenants, each a queue and, by US, a tenant.
function asleep.load(keys)
  local found = call('ZMSCORE', due.key, unpack(keys))
  sound[due.key] = true
  for i = 1, #keys do
    if looks[keys[i]] == nil then looks[keys[i]] = tonumber(found[i] or nil) or false end
  end
end

-- The place of one was read in another way.
function asleep.know(key, at) if looks[key] == nil then looks[key] = at end end

function asleep.add(task) asleep.put(task.fields, task.id, task.state, task.due) end

-- The same for a task with this head.
function asleep.put(head, id, state, moment)
  local at = state == DEFERRED and LAST_ASLEEP or moment
  local index = asleep.of(head.queue, head.tenant)
  set_at(index, id, at)
  if fresh[id] then index.new = (index.new or 0) + 1 end
  if at == LAST_ASLEEP then return end
  local key = head.queue .. SEP .. head.tenant
  local known = look(key)
  if not known or at < known then set_at(due, key, at) end
end

-- New tasks of a tenant, `first` to `last` of `ids`, all deferred.
function asleep.defer(head, ids, first, last)
  local index = asleep.of(head.queue, head.tenant)
  local over = index.over
  for i = first, last do over[ids[i]] = LAST_ASLEEP end
  index.changed, index.sorted, index.low, index.new = true, nil, index.low or LAST_ASLEEP, (index.new or 0) + last - first + 1
end

function asleep.take(task, from)
  local head = task.fields
  local index, key = asleep.of(head.queue, head.tenant), head.queue .. SEP .. head.tenant
  drop(index, task.id)
  if from ~= DEFERRED and task.due <= max(look(key) or 0, now) then stale[key] = index end
end

-- Let a tenant have its place at the moment of its first task, or none.
local function set_place(key, first)
  local at, to = look(key), first and first < LAST_ASLEEP and first
  if to and to <= now and at then to = max(to, min(at, now)) end
  if to == at then return end
  if at then drop(due, key) end
  if to then set_at(due, key, to) end
end

-- The place of a tenant has to be found anew.
function asleep.look_again(key, index) stale[key] = index end

-- A tenant was looked at; `more`: of what is due now something is left, otherwise the next of its tasks is due then.
function asleep.looked_at(key, index, more, next)
  local unsure = stale[key] -- something was taken that nobody looked at
  stale[key] = nil
  if more then set_at(due, key, now) elseif unsure then stale[key] = index else set_place(key, next) end
end

-- Before anybody asks when something is due: the places of tenants of which something was taken.
function asleep.settle()
  if next(stale) == nil then return end
  for key, index in pairs(stale) do
    local first = firsts(index, 1)[1]
    set_place(key, first and first[1])
  end
  stale = {}
end

-- @part promote
-- Queue what is due, end what is past its deadline, wake those whose rate allows it.
--
-- BULK: how many tasks are queued for the price of one that ends. REFILL: as many are promoted for a tenant that ran
-- out of queued tasks while it is served, twice as many the next time.
-- TIES: so many tasks of equal times one call reads beyond those that it promotes; twice what one call of enqueue brings.
-- @const BULK=5 REFILL=4 TIES=1000

-- A rate has a token again: of a named limiter, a whole queue, or one tenant of it.
local function alarm(key)
  local queue_name, name = match(key, '^([^\31]*)\31(.*)$')
  if queue_name == '' then return limits.wake(name) end
  local queue = read_queue(queue_name)
  if not queue then return end
  if name == '' then rung[queue_name] = queue return end
  local tenant = read_tenant(queue, name)
  if tenant and tenant[STATUS] == PARKED then fair.make_ready(tenant) end
end

-- End up to STEP tasks that are past their deadline; as how many that counts, and how many they were.
local function end_late()
  local found, ids, ends, moved = firsts(deadlines, STEP, now), {}, 0, 0
  for i = 1, #found do ids[i] = found[i][2] end
  if #ids > 0 then
    load_tasks(ids)
    tie.load(ids)
  end
  for i = 1, #ids do
    if ends >= STEP then break end
    local task = tasks[ids[i]]
    drop(deadlines, ids[i])
    if task then
      moved, ends = moved + 1, ends + (task.state == DEFERRED and parent_edges.of(task.id) == '#' and WIDE or 1)
      if WAITS[task.state] then outcome.expire(task) end
    end
  end
  return ends, moved
end

local AS_QUEUED, NO_DEADLINE, FIRST_LIFE = '\3', ('\0'):rep(8), ('\0'):rep(4)

-- The entry of a line for a task of this record, if it is asleep, has no deadline and the level it came with. FATE: its first byte is the
-- state, the 11th and 12th are the generation, the 37th to 44th the deadline. SIZE begins with the life.
local function short_way(id, record)
  local state = record:byte(1)
  if state ~= SCHEDULED and state ~= RETRYING or sub(record, 37, 44) ~= NO_DEADLINE or record:byte(FATE_END + 1) >= MOVED then
    return nil
  end
  local low, high = record:byte(11, 12)
  if low + high == 0 and sub(record, -12, -9) == FIRST_LIFE then return id, state end
  return id .. SEP .. unpacked('<I', record, #record - 11) .. '.' .. (low + 256 * high), state
end

-- What is needed of their records; most tasks need not be made for it.
local function records_of(ids)
  local missing, count = {}, 0
  for i = 1, #ids do
    if tasks[ids[i]] == nil and raw[ids[i]] == nil and not latest[ids[i]] then count = count + 1 missing[count] = ids[i] end
  end
  local found = count > 0 and call('HMGET', prefix .. 'records', unpack(missing)) or {}
  for i = 1, count do if found[i] then raw[missing[i]] = found[i] end end
  sound[prefix .. 'records'] = true
end

local ties -- that this call may still read
begins[#begins + 1] = function()
  ties = TIES
end

local function is_made(id) return #id == 32 and not find(id, ':', 1, true) end

-- The number of a task in the order in which chosen ids came.
local function life_of(id)
  local task, record = tasks[id], latest[id] or raw[id]
  if task or not record then return task and task.life or 0 end
  return (unpacked('<I', record, #record - SIZE_LENGTH + 1))
end

-- Put these rows, which are due at one moment, into the order in which they came.
local function order_by_lives(rows, first, last)
  local ids, lives, some = {}, {}, {}
  for k = first, last do ids[k - first + 1], some[k - first + 1] = rows[k][2], rows[k] end
  records_of(ids)
  for k = 1, #ids do lives[ids[k]] = life_of(ids[k]) end
  sort(some, function(row, other_row)
    local one, other = lives[row[2]], lives[other_row[2]]
    if one ~= other then return one < other end
    return less(row[2], other_row[2])
  end)
  for k = 1, #some do rows[first + k - 1] = some[k] end
end

-- The first `most` tasks that sleep, and one more. Those of one moment are stored by their ids, which is the order in which they
-- came if Fairlead made these; chosen ones are put into that order, as far as a call may read them.
local function first_asleep(index, most)
  local rows, place = firsts(index, most + 1), 1
  while rows[place] and rows[place][1] <= now do
    local at, from = rows[place][1], place
    if rows[place + 1] and rows[place + 1][1] == at then
      local chosen = not is_made(rows[place][2])
      repeat
        place = place + 1
        chosen = chosen or not is_made(rows[place][2])
      until not rows[place + 1] or rows[place + 1][1] ~= at
      if not rows[place + 1] and place > most and chosen and ties > 0 then -- there may be more of them
        rows = firsts(index, most + 1 + ties)
        while rows[place + 1] and rows[place + 1][1] == at do place, ties = place + 1, ties - 1 end
      end
      if chosen then order_by_lives(rows, from, place) end
    end
    place = place + 1
  end
  for k = #rows, most + 2, -1 do rows[k] = nil end
  return rows
end

-- Queue up to `most` tasks of a tenant that are due, in the order of time; how many. `late` counts those that are
-- past their deadline, of STEP in a call. `rows` are the first that sleep, one more than
-- that, if they were read already.
local function promote_tenant(tenant, most, late, rows)
  local queue, key = tenant[QUEUE], tenant[QUEUE].name .. SEP .. tenant[NAME]
  local index = asleep.of(queue.name, tenant[NAME])
  local ids, done, from, first = {}, 0, { 0, 0, 0, 0, 0 }, nil
  local known_rows, many = rows ~= nil, 0
  rows = rows or first_asleep(index, most)
  for i = 1, #rows do
    if rows[i][1] > now then break end
    many = i
    if i <= most then ids[i] = rows[i][2] end
  end
  if #ids > 0 and not known_rows then records_of(ids) end
  local written_size, last_self, its_level, back, level, mark = #written, nil, nil, nil, nil, '\28' .. tenant[NAME]
  local function tell(last)
    if first then add_rows(group_of('queued', QUEUED, queue.name, 0, 0, ''), mark, ids, first, last) end
    first = nil
  end
  for i = 1, #ids do
    if late.ends >= STEP then break end
    local id = ids[i]
    local record = tasks[id] == nil and not latest[id] and raw[id]
    local entry, state
    if record then entry, state = short_way(id, record) end
    if entry then
      local self_text = sub(record, FATE_END + 1, -1 - SIZE_LENGTH)
      if self_text ~= last_self then last_self, its_level = self_text, parsed(select(5, unpacked(SELF, self_text))).level end
      if its_level ~= level then level, back = its_level, added(line(tenant, its_level), L_BACK) end
      back[#back + 1] = entry
      if level < 4 then tenant[LEN + level] = tenant[LEN + level] + 1 else set_length(tenant, level, length_of(tenant, level) + 1) end
      record = AS_QUEUED .. sub(record, 2)
      written[written_size + 1], written[written_size + 2], latest[id], raw[id] = id, record, record, nil
      written_size, from[state], first = written_size + 2, from[state] + 1, first or i
      drop(index, id)
    else
      tell(i - 1)
      local task = known(id)
      if not task or (task.state ~= SCHEDULED and task.state ~= RETRYING) then
        drop(index, id)
      elseif task.deadline > 0 and task.deadline < now then
        tie.load({ id })
        outcome.expire(task)
        late.ends = late.ends + 1
      else
        queue_up(task)
        emit('queued', task)
      end
    end
    done = i
  end
  tell(done)
  local moved = from[SCHEDULED] + from[RETRYING]
  if moved > 0 then
    for _, state in ipairs({ SCHEDULED, RETRYING }) do
      tenant[COUNT + state], queue.counts[state] = tenant[COUNT + state] - from[state], queue.counts[state] - from[state]
    end
    tenant[COUNT + QUEUED], queue.counts[QUEUED] = tenant[COUNT + QUEUED] + moved, queue.counts[QUEUED] + moved
    tenant[SPECIAL] = tenant[SPECIAL] + moved
    tenant[CHANGED], queue.changed = true, true
    made_queued(tenant)
  end
  asleep.looked_at(key, index, many > done, rows[many + 1] and rows[many + 1][1])
  return done
end

-- Tenants whose time has come, those first that were looked at the longest ago; how many tasks moved.
local function promote_due(late)
  asleep.settle()
  local found, names, moved = firsts(due, STEP, now), {}, 0
  if #found == 0 then return 0 end
  local each = max(1, floor(max(STEP, (STEP - late.ends) * BULK) / #found))
  for i = 1, #found do
    local queue_name, name = match(found[i][2], '^([^\31]*)\31(.*)$')
    local list = names[queue_name] or {}
    names[queue_name], list[#list + 1], found[i][3], found[i][4] = list, name, queue_name, name
  end
  for queue_name, list in pairs(names) do
    local queue = read_queue(queue_name)
    if queue then load_tenants(queue, list) end
  end
  local rows, ids, count = {}, {}, 0
  for i = 1, #found do
    local first_rows = first_asleep(asleep.of(found[i][3], found[i][4]), each)
    rows[i] = first_rows
    for k = 1, min(#first_rows, each) do
      if first_rows[k][1] > now then break end
      count = count + 1
      ids[count] = first_rows[k][2]
    end
    asleep.know(found[i][2], found[i][1])
  end
  if count > 0 then records_of(ids) end
  for i = 1, #found do
    local queue = read_queue(found[i][3])
    local tenant = queue and queue.tenants[found[i][4]]
    if tenant then moved = moved + promote_tenant(tenant, each, late, rows[i]) else drop(due, found[i][2]) end
  end
  return moved
end

function promote()
  if meta.next > now then -- and it is known
    follow_up()
    return 0, false
  end
  local late, moved, rang = {}, 0, 0
  late.ends, moved = end_late()
  moved = moved + promote_due(late)
  for _, each in ipairs(firsts(alarms, STEP, now)) do
    rang = rang + 1
    drop(alarms, each[2])
    alarm(each[2])
  end
  follow_up()
  asleep.settle()
  return moved + rang, late.ends >= STEP or rang >= STEP or #firsts(due, 1, now) > 0
end

local refills
begins[#begins + 1] = function()
  refills = {} -- tenant -> how many of its tasks were promoted when it ran out last
end

-- A tenant has no queued task left: if something of it is due, that is next; else it is idle. Whether it goes on.
function ran_out(tenant)
  if meta.next <= now and tenant[COUNT + SCHEDULED] + tenant[COUNT + RETRYING] > 0 then
    refills[tenant] = 2 * (refills[tenant] or REFILL / 2)
    promote_tenant(tenant, refills[tenant], { ends = 0 })
    if tenant[COUNT + QUEUED] > 0 then return true end
  end
  clear_lines(tenant)
  fair.unready(tenant, IDLE)
  return false
end

-- @part outlook
-- Is there something to fetch, or when will there be?
-- What a worker asks before it sleeps. Reads from ARGV the names of queues.
-- Whether a queue of ARGV[from] to the last is runnable or a schedule due (1 or 0), when something is due (nil: never), and
-- whether it is the caller that has to wake up then: one who sleeps for so many seconds.
function outlook(from, seconds)
  promote()
  if meta.laying > 0 then
    flows.see_to()
    follow_up()
  end
  local found = 0
  for i = from, #ARGV do
    local queue = read_queue(ARGV[i])
    if queue and fair.runnable(queue) then
      found = 1
      rung[queue.name] = nil -- the caller is awake, and will wake the next one if it leaves work behind
    end
  end
  local least = next_due()
  -- Schedules that are due: the caller will ask for them.
  if found == 0 and least and least <= now and #firsts(timed('ticks'), 1, now) > 0 then found = 1 end
  local holds = 0
  if found == 0 then
    local at = min(least or huge, now + seconds)
    -- Nobody else has an alarm that is still to come and early enough: this one takes it.
    if meta.alarm <= now or at < meta.alarm - 0.001 then
      meta.alarm = at
      holds = 1
    end
  end
  return found, least, holds
end
