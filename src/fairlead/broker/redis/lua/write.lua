-- write: progress, checkpoints, log lines and XCom values, each under the lease of its task.
--
-- ARGV     clock, incarnation, number; seven for each: id, incarnation, token, kind (p progress,
--          c checkpoint, l log lines, x xcom), key, value, ttl
-- Returns  codes: a applied, f fenced, u unknown, l the tenant has no room for more XCom values
-- @flags allow-oom
-- @library upkeep
-- @include engine documents.xcom call.once
local kept = once('write', tostring)
if kept then return kept end
local ids, codes = {}, {}
-- @const NO_CHECKPOINT=4294967295
local MARK, MAX_LINES, MAX_LOG = '\193\0', 500, 65536 -- see model/log_lines.py, which does the same
local made = {} -- by id: what this call has made of a checkpoint and a log

-- The checkpoint and the log of a task: false and empty if there is none.
local function kept_parts(task)
  local stored = made[task.id] or has(task, 8) and call('HGET', prefix .. 'checkpoints', task.id)
  if not stored then return false, '' end
  if sub(stored, 1, 2) ~= MARK then return stored, '' end
  local size, start = unpacked('<I', stored, 3)
  if size == NO_CHECKPOINT then return false, sub(stored, start) end
  return sub(stored, start, start + size - 1), sub(stored, start + size)
end

local function keep(task, checkpoint, log)
  local stored = checkpoint
  if log ~= '' then stored = MARK .. pack('<I', checkpoint and #checkpoint or NO_CHECKPOINT) .. (checkpoint or '') .. log end
  made[task.id] = stored
  set_part(task, 8, stored)
end

-- A log with more lines; the oldest chunks of too many are dropped.
local function with_lines(log, chunk)
  local dropped, lines, place = 0, 0, 1
  if log ~= '' then dropped, lines, place = unpacked('<II', log) end
  local count, missed = unpacked('<HH', chunk)
  local entries = sub(log, place) .. pack('<I', #chunk - 4) .. chunk
  dropped, lines, place = dropped + missed, lines + count, 1
  while lines > MAX_LINES or #entries - place + 1 > MAX_LOG do
    local size
    size, count = unpacked('<IH', entries, place)
    place = place + 8 + size
    dropped, lines = dropped + count, lines - count
  end
  return pack('<II', min(dropped, NO_CHECKPOINT), lines) .. sub(entries, place)
end

for i = 4, #ARGV, 7 do ids[#ids + 1] = ARGV[i] end
load_tasks(ids)
for place, id in ipairs(ids) do
  local arg = 4 + 7 * (place - 1)
  local task, kind, value = find_task(id), ARGV[arg + 3], ARGV[arg + 5]
  if not task then
    codes[place] = 'u'
  elseif not leased_as(task, ARGV[arg + 1], tonumber(ARGV[arg + 2])) then
    codes[place] = 'f'
  else
    codes[place] = 'a'
    if kind == 'p' then
      set_part(task, 4, value)
      emit('progress', task, '', task.attempts + 1, task.token)
    elseif kind == 'c' then
      local _, log = kept_parts(task)
      keep(task, value, log)
    elseif kind == 'l' then
      local checkpoint, log = kept_parts(task)
      keep(task, checkpoint, with_lines(log, value))
    else
      local field = task.fields.tenant .. SEP .. ARGV[arg + 4]
      local till = now + tonumber(ARGV[arg + 6])
      local stored = pack('<dHc0', till, #id, id) .. value
      if xcom.put(field, stored) then
        write('HSET', prefix .. 'xcom', field, stored)
        set_at(agenda('xcom-ends'), field, till)
      else
        codes[place] = 'l'
      end
    end
  end
end
return answer(concat(codes))
