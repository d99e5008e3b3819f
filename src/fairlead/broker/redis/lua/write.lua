-- write: progress, checkpoints and XCom values, each under the lease of its task.
--
-- KEYS[1]  prefix of the shard
-- ARGV     clock, incarnation, number; seven for each: id, incarnation, token, kind (p progress,
--          c checkpoint, x xcom), key, value, ttl
-- Returns  codes: a applied, f fenced, u unknown, l the tenant has no room for more XCom values
-- @flags allow-oom
-- @library upkeep
-- @include engine
-- @include xcom
-- @include once
local kept = once('write', tostring)
if kept then return kept end
local ids, codes = {}, {}
for i = 4, #ARGV, 7 do ids[#ids + 1] = ARGV[i] end
load_tasks(ids)
for n, id in ipairs(ids) do
  local i = 4 + 7 * (n - 1)
  local task, kind, value = find_task(id), ARGV[i + 3], ARGV[i + 5]
  if not task then
    codes[n] = 'u'
  elseif not leased_as(task, ARGV[i + 1], tonumber(ARGV[i + 2])) then
    codes[n] = 'f'
  else
    codes[n] = 'a'
    if kind == 'p' then
      set_part(task, 4, value)
      emit('progress', task, '', task.attempts + 1, task.token)
    elseif kind == 'c' then
      set_part(task, 8, value)
    else
      local field = task.h.tenant .. SEP .. ARGV[i + 4]
      local till = now + tonumber(ARGV[i + 6])
      local stored = pack('<dHc0', till, #id, id) .. value
      if xcom.put(field, stored) then
        write('HSET', P .. 'xcom', field, stored)
        set_at(agenda('xcom-ends'), field, till)
      else
        codes[n] = 'l'
      end
    end
  end
end
return answer(concat(codes))
