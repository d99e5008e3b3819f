-- settle: carry out decided moves under leases that are in force, refuse the others.
--
-- Reads KEYS[1] and, from ARGV, seven for each settlement: id, token, to, run time, more, result,
-- error. `more` is 'R' (a result) or '-', then by US: delay, whether the attempt counts, keep,
-- reason; '' is '-' alone. Returns the codes: a applied, f fenced, u unknown.
local EVENTS = { 'snoozed', nil, 'released' }
local SMOOTHING = 64 -- settlements over which the average run time of a queue forgets

-- Correct what the dispatch charged by what the attempt took, in average tasks of the queue.
function charge(t, cost, run_time)
  local q, each = t[QUEUE], run_time / cost
  q.average = q.average + (q.average ~= 0 and (each - q.average) / SMOOTHING or each)
  if q.average > 0 then
    t[TAG] = t[TAG] + (run_time / q.average - cost) * STRIDE * UNIT / t[WEIGHT]
    t[CHANGED] = true
    if t[STATUS] == READY then set_at(q.ready, t[NAME], t[TAG]) end
  end
end

local function apply(task, i)
  local to, more, result, err = tonumber(ARGV[i + 2]), ARGV[i + 4], ARGV[i + 5], ARGV[i + 6]
  local delay, burn, keep, reason = 0, true, nil, ''
  if #more > 1 then
    local m = split(more, SEP)
    delay, burn, keep, reason = tonumber(m[2]), m[3] == '1', tonumber(m[4]), concat(m, SEP, 5)
  end
  local t, attempt, token = tenant_of(task), task.attempts + 1, task.token
  end_lease(task)
  if t[QUEUE].charge == 1 then charge(t, task.h.cost, tonumber(ARGV[i + 3])) end
  if burn then task.attempts = attempt end
  task.crashes = 0
  task.unroutable = reason == 'unroutable' and task.unroutable + 1 or 0
  local meant = to
  if task.cancelling and to ~= COMPLETED then to = CANCELLED end
  if err ~= '' then set_part(task, 1, err, unpacked('<I', err)) end
  if to >= COMPLETED then
    if sub(more, 1, 1) == 'R' then set_part(task, 2, result) end
    finish(task, to, to == meant and reason or '', to == meant and keep or nil)
    emit(NAMES[to], task, task.reason, attempt, token)
  else
    task.reason = reason
    if to == QUEUED then queue_up(task, true) else schedule(task, to, now + delay) end
    emit(EVENTS[to] or NAMES[to], task, reason, attempt, token)
  end
  has_room_again(t)
end

function settle(incarnation, from, count)
  if count == 0 then return '' end
  local ids, codes = {}, {}
  for n = 1, count do ids[n] = ARGV[from + 7 * (n - 1)] end
  load_ties(ids)
  local loans, records = loans_of(incarnation).ended, call('HMGET', P .. 'records', unpack(ids))
  load_owners(records)
  for n, r in ipairs(records) do
    local id, i = ids[n], from + 7 * (n - 1)
    if r and end_plainly(id, i, r, incarnation, loans) then
      codes[n] = 'a'
    else
      local task, token = known(id), tonumber(ARGV[i + 1])
      if task and leased_as(task, incarnation, token) then
        apply(task, i)
        codes[n] = 'a'
      elseif not find_task(id) then
        codes[n] = 'u'
      else
        codes[n] = 'f'
        emit('fenced', task, '', 0, token)
      end
    end
  end
  follow_up()
  return concat(codes)
end
