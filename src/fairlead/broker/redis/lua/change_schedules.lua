-- change_schedules: create, replace, pause, resume, move on or delete schedules.
--
-- ARGV     clock, incarnation, number; seven for each: name, what to do ('c' create, 'p' put, 'h' pause,
--          'r' resume, 's' skip, 'd' delete), queue, spec, next slot or '', revision or '',
--          of a new one its last slot or ''
-- Returns  by RS a letter and the revision of each: d done, n unchanged, e exists, u unknown, s stale,
--          f full
-- @library upkeep
-- @include engine schedules call.once
local kept = once('plan', tostring)
if kept then return kept end

local function new(name, action, queue, spec, next, revision, last)
  if action ~= 'c' and action ~= 'p' then return 'u', 0 end
  if revision then return 's', 0 end -- there was one when it was read
  if schedules.is_full() then return 'f', 0 end
  meta.token = next_number(meta.token)
  schedules.keep({ name = name, queue = queue, revision = meta.token, paused = false, next = next, last = last,
    changed = now, spec = spec })
  return 'd', meta.token
end

local function changes(schedule, action, queue, spec, next)
  if action == 'p' then return schedule.queue ~= queue or schedule.spec ~= spec end
  if action == 'h' then return not schedule.paused end
  if action == 'r' then return schedule.paused end
  return schedule.next and (not next or next > schedule.next)
end

local function carry_out(name, action, queue, spec, next, revision, last)
  local schedule = schedules.read(name)
  if not schedule then return new(name, action, queue, spec, next, revision, last) end
  if action == 'c' then return 'e', schedule.revision end
  if revision and revision ~= schedule.revision then return 's', schedule.revision end
  if action == 'd' then
    schedules.forget(name)
    return 'd', 0
  end
  if not changes(schedule, action, queue, spec, next) then return 'n', schedule.revision end
  if action ~= 's' then -- a skip changes nothing that its owner said
    meta.token = next_number(meta.token)
    schedule.revision, schedule.changed = meta.token, now
  end
  if action == 'p' then schedule.queue, schedule.spec = queue, spec end
  if action == 'h' or action == 'r' then schedule.paused = action == 'h' end
  if action ~= 'h' then schedule.next = next end
  schedules.keep(schedule)
  return 'd', schedule.revision
end

local answers, names = {}, {}
for i = 4, #ARGV, 7 do
  local code, revision = carry_out(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], tonumber(ARGV[i + 4]),
    tonumber(ARGV[i + 5]), tonumber(ARGV[i + 6]))
  answers[#answers + 1], names[#names + 1] = code .. format('%.0f', revision), ARGV[i]
end
return answer(concat(answers, '\30'), names)
