-- fetch: lend what was chosen, and mark what has started.
--
-- Reads KEYS[1] and from ARGV the names of queues and three for each mark: id, incarnation, token.
-- Returns nothing by itself.
-- Note that held tasks have begun to run: from now on a crash is charged to them.
function mark(from, count)
  local codes = {}
  for n = 1, count do
    local i = from + 3 * (n - 1)
    local task = find_task(ARGV[i])
    if not task then
      codes[n] = 'u'
    elseif ARGV[i + 1] ~= CALLER or not leased_as(task, CALLER, tonumber(ARGV[i + 2])) then
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

-- Lend up to `wanted` tasks of the queues in ARGV[from] to ARGV[to], looked into in this order. Returns their ids,
-- these in one text, and whether there may be more.
function fetch(wanted, start, lease, from, to)
  local budget, taken = { wanted = wanted, visits = 4 * wanted + 64, drops = 256, bytes = BUDGET, counted = false }, {}
  for i = from, to do
    local q = read_queue(ARGV[i])
    if q and q.paused == 0 and #taken < wanted and budget.bytes > 0 then serve(q, budget, taken) end
  end
  if #taken > 0 then lend(taken, start, lease) end
  follow_up()
  for i = from, to do
    local q = read_queue(ARGV[i])
    if q then
      rung[q.name] = q -- whoever leaves work behind wakes the next
      set_alarm(q)
    end
  end
  local more = budget.visits <= 0 or budget.drops <= 0 or budget.bytes <= 0
  if #taken == 0 then return {}, '', more end
  return loans_of(CALLER).ids, loans_of(CALLER).text, more
end
