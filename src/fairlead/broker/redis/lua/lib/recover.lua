-- recover: take everything from an incarnation whose process is gone.
--
-- The twin of memory/recovery.py. Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @include uncollected
local CRASH_LIMIT, ALONE = 3, 2
local RUNS, CRASHES = 2048, 128 -- what the two limits in a message's flags stay below

-- How often a task may run, and how many crashes it survives, plus one; 0: not said.
local function run_limits(task)
  local flags = tonumber(match(task.h.base or task.head, '([^\31]*)$'))
  return flags % RUNS, floor(flags / RUNS) % CRASHES
end

-- As model.lifecycle.may_have_run: whether a loan is charged whose worker is gone, and nobody saw what it began.
local function may_have_run(task)
  if task.started > 0 then return true end
  local runs, limit = run_limits(task)
  return limit == 0 and runs > 0 and task.attempts + 1 >= runs
end

-- As model.lifecycle.after_crash: why a task is dead now; nil if it runs again.
local function end_by_crash(task)
  local runs, limit = run_limits(task)
  if limit > 0 then return task.crashes >= limit and 'poison' or nil end
  if task.crashes >= CRASH_LIMIT then return 'poison' end
  if runs > 0 and task.attempts >= runs then return 'exhausted' end
end

-- `why` says what became of a loan that is charged to nobody, if there is anything to say; `blocked`,
-- that it kept its neighbors from running.
function recover(task, crashed, why, blocked)
  local attempt, token = task.attempts + 1, task.token
  local t = tenant_of(task)
  if crashed then
    if task.started == 0 then stats.began(t, stats.since(task), 1) end -- nobody had said so
    stats.add(t[QUEUE], FAILED, 1)
  end
  end_lease(task)
  if crashed then
    task.attempts, task.due = attempt, 0
    task.crashes = max(task.crashes + 1, blocked and ALONE or 0)
  end
  local fate = crashed and not task.cancelling and end_by_crash(task)
  local reason = crashed and 'crash' or why or ''
  if task.cancelling then
    finish(task, CANCELLED, '')
    emit('cancelled', task, '', attempt, token)
  elseif fate then
    if fate == 'poison' then
      set_error(task, 'Poison', 'its process died ' .. task.crashes .. ' times in a row')
    else
      set_error(task, 'ProcessDied', 'its process died in attempt ' .. attempt .. ', its last')
    end
    finish(task, DEAD, fate)
    emit('dead', task, fate, attempt, token)
  else
    task.reason = reason
    if crashed then stats.add(t[QUEUE], RETRIED, 1) end
    queue_up(task, not blocked) -- behind its neighbors, if it kept them from running
    emit('recovered', task, reason, attempt, token)
  end
  has_room_again(t)
end

-- Up to `most` loans of an incarnation, the latest first, and whether it has more. Calls are looked at
-- from the last one on, and no further than needed.
local function holdings(incarnation, most)
  local key = P .. 'held:' .. incarnation
  local ids, tokens, n, place, calls = {}, {}, 0, 0, call('ZCARD', key)
  local left = false
  while n < most and place < calls do
    local row = call('ZREVRANGE', key, place, place, 'WITHSCORES')
    local _, start = opened_loans(row[1])
    local all = split(sub(row[1], start + 1), SEP)
    place = place + 1
    for i = #all, 1, -1 do
      if n == most then left = true break end
      n = n + 1
      ids[n], tokens[n] = all[i], tonumber(row[2])
    end
  end
  load_tasks(ids)
  return ids, tokens, left or place < calls
end

-- Up to `most` loans go back, from the last to the first: each goes to the front of its level,
-- which restores their order. `started` (or nil: nobody saw it) says to whom a crash is charged, and
-- `blocked`, if given, which of these kept the others from running.
function give_back(incarnation, started, most, blocked)
  local lay = uncollected.close(incarnation) -- handed over, and nobody came for it
  local ids, tokens, more = holdings(incarnation, most)
  for i = 1, #ids do
    local task = tasks[ids[i]]
    if task and leased_as(task, incarnation, tokens[i]) then
      local crashed
      if started then crashed = started[task.id] or false else crashed = task.id ~= lay and may_have_run(task) end
      recover(task, crashed, nil, crashed and blocked and blocked[task.id])
    else
      end_loans(incarnation, tokens[i], ids, i, i)
    end
  end
  if not more then drop(lease_ends, incarnation) end
  follow_up()
  return #ids, more
end
