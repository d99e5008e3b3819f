-- apply: one settlement, carried out whatever it says.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
local EVENTS = { 'snoozed', nil, 'released' }
local SMOOTHING = 64 -- settlements over which the average run time of a queue forgets

-- Correct what the dispatch charged by what the attempt took, in average tasks of the queue.
local function charge(t, cost, run_time)
  local q, each = t[QUEUE], run_time / cost
  q.average = q.average + (q.average ~= 0 and (each - q.average) / SMOOTHING or each)
  if q.average > 0 then
    t[TAG] = t[TAG] + (run_time / q.average - cost) * STRIDE * UNIT / t[WEIGHT]
    t[CHANGED] = true
    if t[STATUS] == READY then set_at(q.ready, t[NAME], t[TAG]) end
  end
end

-- As model.lifecycle.went_well: what an attempt says of what its task depends on; nil: nothing.
local function went_well(to, burn, reason, err)
  if to == COMPLETED then return true end
  local counts = burn and err ~= '' and (reason == '' or reason == 'exhausted')
  if counts and (to == RETRYING or to == DEAD) then return false end
end

function apply(task, to, run_time, more, result, err)
  local delay, burn, keep, reason = 0, true, nil, ''
  if #more > 1 then
    local m = split(more, SEP)
    delay, burn, keep, reason = tonumber(m[2]), m[3] == '1', tonumber(m[4]), concat(m, SEP, 5)
  end
  local t, attempt, token = tenant_of(task), task.attempts + 1, task.token
  local meant = to
  if task.started == 0 and (burn or reason == 'snoozed') then begin(task) end -- nobody had said so
  if task.cancelling and to ~= COMPLETED then to = CANCELLED end
  if task.started > 0 then stats.times(stats.of(t[QUEUE]), H_RUN, { run_time }, 1, 1, 1) end
  if burn and meant ~= COMPLETED and meant ~= CANCELLED then
    stats.add(t[QUEUE], FAILED, 1)
    if to < COMPLETED then stats.add(t[QUEUE], RETRIED, 1) end
  end
  end_lease(task, task.h.limited and went_well(to, burn, reason, err))
  if t[QUEUE].charge == 1 then charge(t, task.h.cost, run_time) end
  if burn then task.attempts = attempt end
  task.crashes = reason == 'crashed' and task.crashes + 1 or 0
  task.unroutable = reason == 'unroutable' and task.unroutable + 1 or 0
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
