-- recover: take everything from an incarnation whose process is gone.
--
-- The twin of memory/recovery.py. Reads KEYS[1], no ARGV. Returns nothing by itself.
local CRASH_LIMIT = 3

-- `why` says what became of a loan that is charged to nobody, if there is anything to say.
function recover(task, crashed, why)
  local attempt, token = task.attempts + 1, task.token
  local t = tenant_of(task)
  if crashed then
    if task.started == 0 then stats.began(t, stats.since(task), 1) end -- nobody had said so
    stats.add(t[QUEUE], FAILED, 1)
  end
  end_lease(task)
  if crashed then
    task.attempts, task.due = attempt, 0
    task.crashes = task.crashes + 1
  end
  local reason = crashed and 'crash' or why or ''
  if task.cancelling then
    finish(task, CANCELLED, '')
    emit('cancelled', task, '', attempt, token)
  elseif crashed and task.crashes >= CRASH_LIMIT then
    set_error(task, 'Poison', 'its process died ' .. task.crashes .. ' times in a row')
    finish(task, DEAD, 'poison')
    emit('dead', task, 'poison', attempt, token)
  else
    task.reason = reason
    if crashed then stats.add(t[QUEUE], RETRIED, 1) end
    queue_up(task, true)
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
-- which restores their order. `started` (or nil: what is marked) says to whom a crash is charged.
function give_back(incarnation, started, most)
  local ids, tokens, more = holdings(incarnation, most)
  for i = 1, #ids do
    local task = tasks[ids[i]]
    if task and leased_as(task, incarnation, tokens[i]) then
      local crashed
      if started then crashed = started[task.id] or false else crashed = task.started > 0 end
      recover(task, crashed)
    else
      end_loans(incarnation, tokens[i], ids, i, i)
    end
  end
  if not more then drop(lease_ends, incarnation) end
  follow_up()
  return #ids, more
end
