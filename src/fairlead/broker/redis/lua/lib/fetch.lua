-- fetch: lend what was chosen, and mark what has started.
--
-- Reads KEYS[1] and from ARGV the names of queues and three for each mark: id, incarnation, token.
-- Returns nothing by itself.
local function begin(task)
  task.started = now
  if task.hold == 1 then release_unique(task) end
  emit('started', task, '', task.attempts + 1, task.token)
end

-- Note that held tasks have begun to run: from now on a crash is charged to them.
function mark(incarnation, from, count)
  local codes = {}
  for n = 1, count do
    local i = from + 3 * (n - 1)
    local task = find_task(ARGV[i])
    if not task then
      codes[n] = 'u'
    elseif ARGV[i + 1] ~= incarnation or not leased_as(task, incarnation, tonumber(ARGV[i + 2])) then
      codes[n] = 'f'
    else
      codes[n] = 'a'
      if task.started == 0 then
        changed[task.id] = task
        begin(task)
      end
    end
  end
  return concat(codes)
end

local function lend(incarnation, taken, start, lease)
  M.token = max(M.token + 1, floor(now * 1000000))
  if now + lease > (at_of(lease_ends, incarnation) or 0) then set_at(lease_ends, incarnation, now + lease) end
  local loans, lent = loans_of(incarnation), {}
  loans.token, loans.ids = M.token, lent
  local started = pack(FATE, RUNNING, 0, 0, 0, 0, 0, 0, M.token, now, 0, 0, 0, 0)
  local waits = pack(FATE, RUNNING, 0, 0, 0, 0, 0, 0, M.token, 0, 0, 0, 0, 0)
  for i = 1, #taken do
    local task = taken[i]
    local head = drawn[task]
    lent[i] = head and task or task.id
    if head then
      local h = lend_plainly(task, i, incarnation, i <= start and started or waits)
      if i <= start then row('started', RUNNING, h.queue, h.tenant, M.token, 1, '', task) end
    else
      task.token, task.incarnation, task.place = M.token, incarnation, i
      if task.deadline > 0 then drop(deadlines, task.id) end
      if i <= start then begin(task) end
    end
  end
end

-- Lend up to `wanted` tasks of the queues in ARGV[from] to ARGV[to], looked into in this order.
function fetch(incarnation, wanted, start, lease, from, to)
  local budget, taken = { wanted = wanted, visits = 4 * wanted + 64, drops = 256 }, {}
  for i = from, to do
    local q = read_queue(ARGV[i])
    if q and q.paused == 0 and #taken < wanted then serve(q, budget, taken) end
  end
  if #taken > 0 then lend(incarnation, taken, start, lease) end
  follow_up()
  for i = from, to do
    local q = read_queue(ARGV[i])
    if q then
      rung[q.name] = q -- whoever leaves work behind wakes the next
      set_alarm(q)
    end
  end
  return #taken > 0 and loans_of(incarnation).ids or {}, budget.visits <= 0 or budget.drops <= 0
end
