-- asleep: what waits without standing in a line, by tenant and in the order of time.
--
-- 'asleep:' of a tenant holds its scheduled and retrying tasks by the moment they are due, and the deferred ones
-- behind all of these. 'due' says when a tenant has to be looked at: at the earliest of these moments. If more is
-- due than one call promotes, that is the moment at which it was looked at last, so that tenants take turns. Reads
-- KEYS[1], no ARGV. Returns nothing by itself.
-- @share due asleep
-- @const LAST_ASLEEP=9e18
local looks, stale -- tenant -> its place in 'due' as it was read; those whose place has to be found anew
asleep = {}
-- @each
due = timed('due')
looks, stale = {}, {}
-- @end

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

function asleep.add(task) asleep.put(task.h, task.id, task.state, task.due) end

-- The same for a task with this head.
function asleep.put(h, id, state, moment)
  local at = state == DEFERRED and LAST_ASLEEP or moment
  local a = asleep.of(h.queue, h.tenant)
  set_at(a, id, at)
  if fresh[id] then a.new = (a.new or 0) + 1 end
  if at == LAST_ASLEEP then return end
  local key = h.queue .. SEP .. h.tenant
  local known = look(key)
  if not known or at < known then set_at(due, key, at) end
end

function asleep.take(task, from)
  local h = task.h
  local a, key = asleep.of(h.queue, h.tenant), h.queue .. SEP .. h.tenant
  drop(a, task.id)
  if from ~= DEFERRED and task.due <= max(look(key) or 0, now) then stale[key] = a end
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
function asleep.look_again(key, a) stale[key] = a end

-- A tenant was looked at; `more`: of what is due now something is left, otherwise the next of its tasks is due then.
function asleep.looked_at(key, a, more, next)
  local unsure = stale[key] -- something was taken that nobody looked at
  stale[key] = nil
  if more then set_at(due, key, now) elseif unsure then stale[key] = a else set_place(key, next) end
end

-- Before anybody asks when something is due: the places of tenants of which something was taken.
function asleep.settle()
  if next(stale) == nil then return end
  for key, a in pairs(stale) do
    local first = firsts(a, 1)[1]
    set_place(key, first and first[1])
  end
  stale = {}
end
