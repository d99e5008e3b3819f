-- straight_release: deferred tasks whose last dependency is met go into their lines as they are stored.
--
-- With SHORT set to false the engine moves them one by one (lib/outcome), and every key and answer is the same:
-- tests/broker/redis/test_straight_exchange.py. Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @share releases
local SHORT = true
releases = {}
local AS_QUEUED, NO_MOMENT, FIRST_LIFE = '\3', ('\0'):rep(8), ('\0'):rep(4)
local last_self, h, t, sleepers -- of the last one: what its record says of it, its head, its tenant, what waits there
local queue, ended, many -- releases that have not been counted: `many` of tasks whose parents ended then
local stamp
-- @each
last_self, h, t, sleepers, queue, many = nil, nil, nil, nil, nil, 0
stamp = pack('<d', now)
-- @end

-- Read the records of tasks, as far as no other is known of them in this call.
function releases.load(ids)
  local missing, n = {}, 0
  for i = 1, #ids do
    local id = ids[i]
    if tasks[id] == nil and raw[id] == nil and not latest[id] and not fresh[id] then n = n + 1 missing[n] = id end
  end
  if n == 0 then return end
  local found = call('HMGET', P .. 'records', unpack(missing))
  sound[P .. 'records'] = true
  for i = 1, n do if found[i] then raw[missing[i]] = found[i] end end
end

local function read_self(r)
  local its = sub(r, FATE_END + 1, -1 - SIZE_LENGTH)
  if its ~= last_self then
    local _, _, _, _, head = unpacked(SELF, its)
    last_self, h, t = its, parsed(head), nil
  end
  return h
end

-- The record of a task that can go this way: deferred, with no delay that is not over, on the level it came with, and no member
-- of a flow while one is seen to.
function releases.record(id)
  local r = SHORT and tasks[id] == nil and not latest[id] and raw[id]
  if not r or r:byte(1) ~= DEFERRED or r:byte(FATE_END + 1) >= MOVED then return nil end
  local due = sub(r, SINCE + 1, SINCE + 8)
  if due ~= NO_MOMENT and unpacked('<d', due) > now then return nil end
  if M.laying > 0 and read_self(r).flow then return nil end
  return r
end

-- Bring the tenants of tasks with such records into the cache, in one read per queue.
function releases.load_tenants(ids)
  local names = {}
  for i = 1, #ids do
    local r = releases.record(ids[i])
    if r then
      local its = read_self(r)
      local list = names[its.queue] or {}
      names[its.queue], list[#list + 1] = list, its.tenant
    end
  end
  for name, list in pairs(names) do make_tenants(read_queue(name, true), list) end
end

local function entry_in(id, r)
  local low, high = r:byte(11, 12) -- the generation
  if low + high == 0 and sub(r, -SIZE_LENGTH, 3 - SIZE_LENGTH) == FIRST_LIFE then return id end
  return id .. SEP .. unpacked('<I', r, #r - SIZE_LENGTH + 1) .. '.' .. (low + 256 * high)
end

-- Count the releases so far.
function releases.count()
  if many > 0 then stats.times(stats.of(queue), H_RELEASE, { max(0, now - ended) }, 1, 1, many) end
  many = 0
end

-- Let such a task go; its parent ended then.
function releases.place(id, r, at)
  read_self(r)
  if not t then
    t = make_tenant(read_queue(h.queue, true), h.tenant)
    sleepers = asleep.of(h.queue, h.tenant)
  end
  local q, level = t[QUEUE], h.level
  if q ~= queue or at ~= ended then
    releases.count()
    queue, ended = q, at
  end
  many = many + 1
  local counts, n, back = q.counts, #written, added(line(t, level), L_BACK)
  r = AS_QUEUED .. sub(r, 2, SINCE) .. stamp .. sub(r, SINCE + 9)
  written[n + 1], written[n + 2], latest[id], raw[id] = id, r, r, nil
  back[#back + 1] = entry_in(id, r)
  t[LEN + level], t[SPECIAL], t[CHANGED], q.changed = t[LEN + level] + 1, t[SPECIAL] + 1, true, true
  t[COUNT + DEFERRED], t[COUNT + QUEUED] = t[COUNT + DEFERRED] - 1, t[COUNT + QUEUED] + 1
  counts[DEFERRED], counts[QUEUED] = counts[DEFERRED] - 1, counts[QUEUED] + 1
  drop(sleepers, id)
  sleepers.released = (sleepers.released or 0) + 1
  made_queued(t)
  add_rows(group_of('queued', QUEUED, q.name, 0, 0, ''), h.mark, { id }, 1, 1)
end

-- When a task ended that is still known, else now.
function releases.ended(id, life)
  local task, r = tasks[id], latest[id] or raw[id]
  if not task and r and unpacked('<I', r, #r - SIZE_LENGTH + 1) == life then task = { life = life, finished = unpacked('<d', r, 45) } end
  return task and task.life == life and task.finished > 0 and task.finished or now
end
