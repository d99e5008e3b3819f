-- schedules: what is known of each, and when it has to be looked at.
--
-- 'schedules' holds name -> queue, revision, paused, next slot, last slot fired, changed at, each behind
-- US, and the spec, which nobody here reads. 'ticks' holds when to look at those that have something to
-- fire: at the next slot, or later if somebody claimed it. Reads KEYS[1], no ARGV. Returns nothing.
-- @share schedules
-- @const CLAIM=5 MAX_SCHEDULES=10000
local FORM = '^([^\31]*)\31(%d+)\31([01])\31([^\31]*)\31([^\31]*)\31([^\31]*)\31()'
local known, dirty, count
schedules = {} -- one name for all: Lua allows a library 200
-- @each
known, dirty, count = {}, {}, nil
-- @end

function schedules.read(name)
  if known[name] == nil then
    local value = call('HGET', P .. 'schedules', name)
    known[name], sound[P .. 'schedules'] = false, true
    if value then
      local queue, revision, paused, next, last, changed, start = match(value, FORM)
      if start then
        known[name] = { name = name, queue = queue, revision = tonumber(revision), paused = paused == '1',
          next = tonumber(next), last = tonumber(last), changed = tonumber(changed), spec = sub(value, start) }
      end
    end
  end
  return known[name] or nil
end

function schedules.is_full()
  count = count or call('HLEN', P .. 'schedules')
  return count >= MAX_SCHEDULES
end

local function look_at(name, at)
  local ticks = timed('ticks')
  drop(ticks, name) -- first: what is put off must not be taken for the earliest
  if at then set_at(ticks, name, at) end
end

function schedules.keep(s)
  if count and not known[s.name] then count = count + 1 end
  known[s.name], dirty[s.name] = s, true
  look_at(s.name, not s.paused and s.next or nil)
end

function schedules.forget(name)
  if count then count = count - 1 end
  known[name], dirty[name] = false, true
  look_at(name)
end

-- Whoever was handed it, or found no room for its task, has so long until another one comes.
function schedules.put_off(s) look_at(s.name, max(now + CLAIM, s.next)) end

function schedules.due(most) return firsts(timed('ticks'), most, now) end

function schedules.may_fire(s, slot, revision)
  return s and not s.paused and s.revision == revision and s.next and slot >= s.next
    and (not s.last or slot > s.last)
end

writers[#writers + 1] = function()
  local values = {}
  for name in pairs(dirty) do
    local s = known[name]
    values[name] = s and concat({ s.queue, format('%.0f', s.revision), s.paused and 1 or 0, s.next and exact(s.next) or '',
      s.last and exact(s.last) or '', exact(s.changed), s.spec }, SEP)
  end
  write_fields('schedules', dirty, values)
  known, dirty = nil, nil -- specs may be large
end
