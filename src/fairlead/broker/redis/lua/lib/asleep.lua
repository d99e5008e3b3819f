-- asleep: what waits without standing in a line, by tenant and in the order of time.
--
-- 'asleep:' of a tenant holds its scheduled and retrying tasks by the moment they are due, and the deferred ones
-- behind all of these. 'due' says when a tenant has to be looked at: at the earliest of these moments. If more is
-- due than one call promotes, that is the moment at which it was looked at last, so that tenants take turns. Reads
-- KEYS[1], no ARGV. Returns nothing by itself.
-- @share due asleep
local BEHIND = 9e18
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

function asleep.add(task)
  local h = task.h
  local at = task.state == DEFERRED and BEHIND or task.due
  set_at(asleep.of(h.queue, h.tenant), task.id, at)
  if at == BEHIND then return end
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

-- A tenant was looked at; `more`: of what is due now something is left.
function asleep.looked_at(key, a, more)
  if not more then stale[key] = a return end
  stale[key] = nil
  set_at(due, key, now)
end

-- Before anybody asks when something is due: the places of tenants of which something was taken.
function asleep.settle()
  if next(stale) == nil then return end
  for key, a in pairs(stale) do
    local first, at = firsts(a, 1)[1], look(key)
    local to = first and first[1] < BEHIND and first[1]
    if to and to <= now and at then to = max(to, min(at, now)) end
    if to ~= at then
      if at then drop(due, key) end
      if to then set_at(due, key, to) end
    end
  end
  stale = {}
end
