-- lend: tasks that were chosen go on loan.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
function begin(task)
  stats.began(tenant_of(task), stats.since(task), 1)
  task.started, task.due = now, 0
  if task.hold == 1 then release_unique(task) end
  emit('started', task, task.incarnation, task.attempts + 1, task.token) -- the reason says who runs it
end

-- The record of a task that goes the short way, on loan under this fate.
local function lent_record(h, value, fate)
  if h.lent_to ~= CALLER then
    h.lent_to, h.own = CALLER, pack(SELF, 0, #CALLER, CALLER, 0, '', 0, '', #h.head, h.head)
  end
  local body, trace = unpacked('<II', value, 15 + #h.head)
  return fate .. h.own .. pack(SIZE, 0, body + trace, 0)
end

-- Tasks `first` to `last` of `ids`, all of this head and accepted at once, begin to run.
local function begin_alike(h, accepted, ids, first, last)
  add_rows(group_of('started', RUNNING, h.queue, M.token, 1, CALLER), h.mark, ids, first, last)
  stats.began(queues[h.queue].tenants[h.tenant], unpacked('<d', accepted), last - first + 1)
end

-- Those from `first` to `last`, which have all been started, or none of them: a held one keeps the moment
-- since when it could run.
local function lend_all(taken, first, last, started)
  local ids, n, run, accepted, from, known = loans_of(CALLER).ids, #written, nil, nil, 0, {}
  local fate = pack(FATE, RUNNING, 0, 0, 0, 0, 0, 0, M.token, started and now or 0, 0, 0, 0, 0)
  for i = first, last do
    local task, h = taken[i], drawn[i]
    local at = h and sub(stored[i], 1, 8)
    if h ~= run or at ~= accepted then
      if run and started then begin_alike(run, accepted, ids, from, i - 1) end
      if h and not started and at ~= accepted then fate, known = sub(fate, 1, SINCE) .. at .. sub(fate, SINCE + 9), {} end
      run, from, accepted = h, i, at
      if h then known[h] = known[h] or {} end
    end
    if h then
      local value = stored[i]
      local r = known[h][#value]
      if not r then
        r = lent_record(h, value, fate)
        known[h][#value] = r
      end
      ids[i], written[n + 1], written[n + 2] = task, task, r
      n = n + 2
    else
      ids[i] = task.id
      task.token, task.incarnation = M.token, CALLER
      if task.deadline > 0 then drop(deadlines, task.id) end
      if started then begin(task) else task.due = stats.since(task) end
    end
  end
  if run and started then begin_alike(run, accepted, ids, from, last) end
end

function lend(taken, start, lease)
  M.token = next_number(M.token)
  if now + lease > (at_of(lease_ends, CALLER) or 0) then set_at(lease_ends, CALLER, now + lease) end
  local loans = loans_of(CALLER)
  loans.token, loans.ids, start = M.token, {}, min(start, #taken)
  lend_all(taken, 1, start, true)
  lend_all(taken, start + 1, #taken, false)
  loans.text = concat(loans.ids, SEP)
end
