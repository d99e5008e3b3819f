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

-- It was dispatched and did not run: others may go in its place.
local function return_rates(task, t)
  return_one(t[QUEUE])
  if t[GATED] == 1 then return_one(gate_of(t)) end
  for _, name in ipairs(task.h.limiters) do return_one(read_limiter(name, true)) end
end

function apply(task, to, run_time, more, result, err, plain)
  local delay, burn, keep, reason = 0, true, nil, ''
  if #more > 1 then
    local m = split(more, SEP)
    delay, burn, keep, reason = tonumber(m[2]), m[3] == '1', tonumber(m[4]), concat(m, SEP, 5)
  end
  local t, attempt, token = tenant_of(task), task.attempts + 1, task.token
  local meant, ran = to, burn or run_time > 0 or reason == 'snoozed' -- as model.lifecycle.Settlement.ran
  if task.started == 0 and (burn or reason == 'snoozed') then begin(task) end -- nobody had said so
  if task.cancelling and to ~= COMPLETED then to = CANCELLED end
  if task.started > 0 then stats.times(stats.of(t[QUEUE]), H_RUN, { run_time }, 1, 1, 1) end
  if burn and meant ~= COMPLETED and meant ~= CANCELLED then
    stats.add(t[QUEUE], FAILED, 1)
    if to < COMPLETED then stats.add(t[QUEUE], RETRIED, 1) end
  end
  if not ran then return_rates(task, t) end
  end_lease(task, task.h.limited and went_well(to, burn, reason, err))
  if t[QUEUE].charge == 1 and ran then charge(t, task.h.cost, run_time) end
  if burn then task.attempts = attempt end
  task.crashes = reason == 'crashed' and task.crashes + 1 or ran and 0 or task.crashes
  task.unroutable = reason == 'unroutable' and task.unroutable + 1 or ran and 0 or task.unroutable
  if err ~= '' then set_part(task, 1, err, unpacked('<I', err)) end
  if to >= COMPLETED then
    if sub(more, 1, 1) == 'R' then set_part(task, 2, result) end
    finish(task, to, to == meant and reason or '', to == meant and keep or nil, plain)
    emit(NAMES[to], task, task.reason, attempt, token)
  else
    task.reason = reason
    if to == QUEUED then queue_up(task, true) else schedule(task, to, now + delay) end
    emit(EVENTS[to] or NAMES[to], task, reason, attempt, token)
  end
  has_room_again(t)
end
