-- What is known of each, and when it has to be looked at.
-- 'schedules' holds name -> queue, revision, paused, next slot, last slot fired, changed at, each behind US, and the
-- spec, which nobody here reads. 'ticks' holds when to look at those that have something to fire: at the next slot,
-- or later if somebody claimed it. Returns nothing.
-- @share schedules
-- @const CLAIM=5 MAX_SCHEDULES=10000
local FORM = '^([^\31]*)\31(%d+)\31([01])\31([^\31]*)\31([^\31]*)\31([^\31]*)\31()'
local known, dirty, count
schedules = {} -- one name for all: Lua allows a library 200
begins[#begins + 1] = function()
  known, dirty, count = {}, {}, nil
end

function schedules.read(name)
  if known[name] == nil then
    local value = call('HGET', prefix .. 'schedules', name)
    known[name], sound[prefix .. 'schedules'] = false, true
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
  count = count or call('HLEN', prefix .. 'schedules')
  return count >= MAX_SCHEDULES
end

local function look_at(name, at)
  local ticks = timed('ticks')
  drop(ticks, name) -- first: what is put off must not be taken for the earliest
  if at then set_at(ticks, name, at) end
end

function schedules.keep(schedule)
  if count and not known[schedule.name] then count = count + 1 end
  known[schedule.name], dirty[schedule.name] = schedule, true
  look_at(schedule.name, not schedule.paused and schedule.next or nil)
end

function schedules.forget(name)
  if count then count = count - 1 end
  known[name], dirty[name] = false, true
  look_at(name)
end

-- Whoever was handed it, or found no room for its task, has so long until another one comes.
function schedules.put_off(schedule) look_at(schedule.name, max(now + CLAIM, schedule.next)) end

function schedules.due(most) return firsts(timed('ticks'), most, now) end

function schedules.may_fire(schedule, slot, revision)
  return schedule and not schedule.paused and schedule.revision == revision and schedule.next and slot >= schedule.next
    and (not schedule.last or slot > schedule.last)
end

writers[#writers + 1] = function()
  local values = {}
  for name in pairs(dirty) do
    local schedule = known[name]
    values[name] = schedule and concat({ schedule.queue, format('%.0f', schedule.revision), schedule.paused and 1 or 0,
      schedule.next and exact(schedule.next) or '', schedule.last and exact(schedule.last) or '',
      exact(schedule.changed), schedule.spec }, SEP)
  end
  write_fields('schedules', dirty, values)
  known, dirty = nil, nil -- specs may be large
end
