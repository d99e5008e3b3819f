-- recover: take everything from an incarnation whose process is gone.
--
-- The twin of memory/recovery.py. Reads KEYS[1], no ARGV. Returns nothing by itself.
local CRASH_LIMIT = 3

local function recover(task, crashed)
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
  local reason = crashed and 'crash' or ''
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

-- What an incarnation holds, the latest loan first.
local function holdings(incarnation)
  local ids, tokens, places, cursor = {}, {}, {}, '0'
  repeat
    local page = call('HSCAN', P .. 'held:' .. incarnation, cursor, 'COUNT', 100)
    cursor = page[1]
    for i = 1, #page[2], 2 do
      local token = tonumber(match(page[2][i], '^ids:(%d+)$'))
      for id in string.gmatch(token and page[2][i + 1] or '', '[^\31]+') do
        ids[#ids + 1], tokens[#tokens + 1] = id, token
      end
    end
  until cursor == '0'
  for i = 1, #ids, 1000 do load_tasks({ unpack(ids, i, min(i + 999, #ids)) }) end
  local found = {}
  for i = 1, #ids do -- what was lent and has ended since, or was lent again, is not of this loan
    local task = tasks[ids[i]]
    if task and leased_as(task, incarnation, tokens[i]) then found[#found + 1], places[task] = task, i end
  end
  sort(found, function(a, b)
    if a.token ~= b.token then return a.token > b.token end
    return places[a] > places[b]
  end)
  return found
end

-- Up to `most` loans go back, from the last to the first: each goes to the front of its level,
-- which restores their order. `started` (or nil: what is marked) says to whom a crash is charged.
function give_back(incarnation, started, most)
  local found = holdings(incarnation)
  local count = min(#found, most)
  for i = 1, count do
    local crashed
    if started then crashed = started[found[i].id] or false else crashed = found[i].started > 0 end
    recover(found[i], crashed)
  end
  if #found <= count then drop(lease_ends, incarnation) end
  follow_up()
  return count, #found > count
end
