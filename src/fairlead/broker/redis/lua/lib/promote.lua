-- promote: queue what is due, end what is past its deadline, wake those whose rate allows it.
--
-- BULK: how many tasks are queued for the price of one that ends. REFILL: as many are promoted for a tenant that ran
-- out of queued tasks while it is served, twice as many the next time.
-- @const BULK=5 REFILL=4
-- Reads KEYS[1], no ARGV. Returns nothing by itself.

-- A rate has a token again: of a named limiter, a whole queue, or one tenant of it.
local function alarm(key)
  local queue, name = match(key, '^([^\31]*)\31(.*)$')
  if queue == '' then return wake_limiter(name) end
  local q = read_queue(queue)
  if not q then return end
  if name == '' then rung[queue] = q return end
  local t = read_tenant(q, name)
  if t and t[STATUS] == PARKED then make_ready(t) end
end

-- End up to STEP tasks that are past their deadline; as how many that counts, and how many they were.
local function end_late()
  local found, ids, ends, moved = firsts(deadlines, STEP, now), {}, 0, 0
  for i = 1, #found do ids[i] = found[i][2] end
  if #ids > 0 then
    load_tasks(ids)
    load_ties(ids)
  end
  for i = 1, #ids do
    if ends >= STEP then break end
    local task = tasks[ids[i]]
    drop(deadlines, ids[i])
    if task then
      moved, ends = moved + 1, ends + (task.state == DEFERRED and edges_of(task.id) == '#' and WIDE or 1)
      if WAITS[task.state] then expire(task) end
    end
  end
  return ends, moved
end

local AS_QUEUED, NO_DEADLINE, FIRST_LIFE = '\3', ('\0'):rep(8), ('\0'):rep(4)

-- The entry of a line for a task of this record, if it is asleep, has no deadline and the level it came with. FATE: its first byte is the
-- state, the 11th and 12th are the generation, the 37th to 44th the deadline. SIZE begins with the life.
local function short_way(id, r)
  local state = r:byte(1)
  if state ~= SCHEDULED and state ~= RETRYING or sub(r, 37, 44) ~= NO_DEADLINE or r:byte(FATE_END + 1) >= MOVED then return nil end
  local low, high = r:byte(11, 12)
  if low + high == 0 and sub(r, -12, -9) == FIRST_LIFE then return id, state end
  return id .. SEP .. unpacked('<I', r, #r - 11) .. '.' .. (low + 256 * high), state
end

-- What is needed of their records; most tasks need not be made for it.
local function records_of(ids)
  local missing, n = {}, 0
  for i = 1, #ids do
    if tasks[ids[i]] == nil and raw[ids[i]] == nil and not latest[ids[i]] then n = n + 1 missing[n] = ids[i] end
  end
  local found = n > 0 and call('HMGET', P .. 'records', unpack(missing)) or {}
  for i = 1, n do if found[i] then raw[missing[i]] = found[i] end end
  sound[P .. 'records'] = true
end

-- Queue up to `most` tasks of a tenant that are due, in the order of time; how many. `late` counts those that are
-- past their deadline, of STEP in a call. `rows` are the first that sleep, one more than
-- that, if they were read already.
local function promote_tenant(t, most, late, rows)
  local q, key = t[QUEUE], t[QUEUE].name .. SEP .. t[NAME]
  local a = asleep.of(q.name, t[NAME])
  local ids, done, from, first = {}, 0, { 0, 0, 0, 0, 0 }, nil
  local known_rows, many = rows ~= nil, 0
  rows = rows or firsts(a, most + 1)
  for i = 1, #rows do
    if rows[i][1] > now then break end
    many = i
    if i <= most then ids[i] = rows[i][2] end
  end
  if #ids > 0 and not known_rows then records_of(ids) end
  local n, own, its_level, back, level, mark = #written, nil, nil, nil, nil, '\28' .. t[NAME]
  local function tell(last)
    if first then add_rows(group_of('queued', QUEUED, q.name, 0, 0, ''), mark, ids, first, last) end
    first = nil
  end
  for i = 1, #ids do
    if late.ends >= STEP then break end
    local id = ids[i]
    local r = tasks[id] == nil and not latest[id] and raw[id]
    local entry, state
    if r then entry, state = short_way(id, r) end
    if entry then
      local its = sub(r, FATE_END + 1, -1 - SIZE_LENGTH)
      if its ~= own then own, its_level = its, parsed(select(5, unpacked(SELF, its))).level end
      if its_level ~= level then level, back = its_level, added(line(t, its_level), L_BACK) end
      back[#back + 1] = entry
      t[LEN + level] = t[LEN + level] + 1
      r = AS_QUEUED .. sub(r, 2)
      written[n + 1], written[n + 2], latest[id], raw[id] = id, r, r, nil
      n, from[state], first = n + 2, from[state] + 1, first or i
      drop(a, id)
    else
      tell(i - 1)
      local task = known(id)
      if not task or (task.state ~= SCHEDULED and task.state ~= RETRYING) then
        drop(a, id)
      elseif task.deadline > 0 and task.deadline < now then
        load_ties({ id })
        expire(task)
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
      t[COUNT + state], q.counts[state] = t[COUNT + state] - from[state], q.counts[state] - from[state]
    end
    t[COUNT + QUEUED], q.counts[QUEUED] = t[COUNT + QUEUED] + moved, q.counts[QUEUED] + moved
    t[SPECIAL] = t[SPECIAL] + moved
    t[CHANGED], q.changed = true, true
    made_queued(t)
  end
  asleep.looked_at(key, a, many > done, rows[many + 1] and rows[many + 1][1])
  return done
end

-- Tenants whose time has come, those first that were looked at the longest ago; how many tasks moved.
local function promote_due(late)
  asleep.settle()
  local found, names, moved = firsts(due, STEP, now), {}, 0
  if #found == 0 then return 0 end
  local each = max(1, floor(max(STEP, (STEP - late.ends) * BULK) / #found))
  for i = 1, #found do
    local queue, name = match(found[i][2], '^([^\31]*)\31(.*)$')
    local list = names[queue] or {}
    names[queue], list[#list + 1], found[i][3], found[i][4] = list, name, queue, name
  end
  for queue, list in pairs(names) do
    local q = read_queue(queue)
    if q then load_tenants(q, list) end
  end
  local rows, ids, n = {}, {}, 0
  for i = 1, #found do
    local its = firsts(asleep.of(found[i][3], found[i][4]), each + 1)
    rows[i] = its
    for k = 1, min(#its, each) do
      if its[k][1] > now then break end
      n = n + 1
      ids[n] = its[k][2]
    end
    asleep.know(found[i][2], found[i][1])
  end
  if n > 0 then records_of(ids) end
  for i = 1, #found do
    local q = read_queue(found[i][3])
    local t = q and q.tenants[found[i][4]]
    if t then moved = moved + promote_tenant(t, each, late, rows[i]) else drop(due, found[i][2]) end
  end
  return moved
end

function promote()
  if M.next > now then -- and it is known
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
-- @each
refills = {} -- tenant -> how many of its tasks were promoted when it ran out last
-- @end

-- A tenant has no queued task left: if something of it is due, that is next; else it is idle. Whether it goes on.
function ran_out(t)
  if M.next <= now and t[COUNT + SCHEDULED] + t[COUNT + RETRYING] > 0 then
    refills[t] = 2 * (refills[t] or REFILL / 2)
    promote_tenant(t, refills[t], { ends = 0 })
    if t[COUNT + QUEUED] > 0 then return true end
  end
  clear_lines(t)
  unready(t, IDLE)
  return false
end
