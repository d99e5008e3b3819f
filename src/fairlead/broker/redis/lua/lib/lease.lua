-- Loans of tasks to incarnations: how they are made, told, ended and taken back.

-- @part lease
-- Loans of tasks to incarnations.
-- @share lease_ends idle_ends leases
leases = {}
local held -- by incarnation: ids lent in this call, and the loans that ended
begins[#begins + 1] = function()
  lease_ends, idle_ends = agenda('leases'), agenda('idle')
  held = {}
end
-- Seconds for which the last answer to an incarnation is kept: an hour at least, and a minute more, so that only one call of a
-- minute has to say so.
-- @const KEPT=3660 HOUR_LONG=3600

function leases.keep_incarnation(name) set_at(idle_ends, name, now + KEPT) end

-- What this call lends to an incarnation (token, ids, these in one text; as which of its calls, if not as this one), and by
-- token the loans that it ends: a list of ids, the first and the last of them, the next list, ...
function leases.loans_of(name)
  local loans = held[name]
  if not loans then
    loans = { ids = false, ended = {} }
    held[name] = loans
  end
  return loans
end

-- Loans `first` to `last` of `ids`, all under this token, are over.
function leases.end_loans(name, token, ids, first, last)
  local ended = leases.loans_of(name).ended
  local over = ended[token] or {}
  local size = #over
  ended[token], over[size + 1], over[size + 2], over[size + 3] = over, ids, first, last
end

-- What a call has left on loan, as it is stored: the number of the call, and the ids in their order.
function leases.opened_loans(text)
  local number, start = match(text, '^(%d+)()')
  return tonumber(number), start
end

-- The same without those that are over; nil if none is left, which their lengths tell.
local FEW = 4
function leases.remaining_loans(text, runs)
  local start, bytes, over = find(text, SEP, 1, true) or #text + 1, 0, {}
  for run = 1, #runs, 3 do
    local ids = runs[run]
    for i = runs[run + 1], runs[run + 2] do bytes = bytes + #ids[i] + 1 end
  end
  if bytes >= #text - start + 1 then return nil end
  if #runs == 3 then -- most end in the order in which they were lent
    local from, to = find(text, SEP .. concat(runs[1], SEP, runs[2], runs[3]), start, true)
    if from and (to == #text or sub(text, to + 1, to + 1) == SEP) then return sub(text, 1, from - 1) .. sub(text, to + 1) end
  end
  for run = 1, #runs, 3 do
    for i = runs[run + 1], runs[run + 2] do over[#over + 1] = runs[run][i] end
  end
  if #over <= FEW then
    text = text .. SEP
    for i = 1, #over do
      local from, to = find(text, SEP .. over[i] .. SEP, start, true)
      if from then text = sub(text, 1, from) .. sub(text, to + 1) end
    end
    return #text > start and sub(text, 1, -2) or nil
  end
  local gone, left = {}, { sub(text, 1, start - 1) }
  for i = 1, #over do gone[over[i]] = true end
  for id in string.gmatch(sub(text, start), '[^\31]+') do
    if not gone[id] then left[#left + 1] = id end
  end
  return #left > 1 and concat(left, SEP) or nil
end

-- Take a running task from its incarnation and return its room; its state comes next. `well` is what
-- the attempt says of what its limiters stand for, if it says anything.
function leases.end_lease(task, well)
  leases.end_loans(task.incarnation, task.token, { task.id }, 1, 1)
  if task.cancelling then drop(agenda('cancelling:' .. task.incarnation), task.id) end
  task.started = 0
  for _, name in ipairs(task.fields.limiters) do
    local limiter = limits.read(name, true)
    limiter.used, limiter.changed = limiter.used - 1, true
    if limiter.breaker then breakers.hear(limiter.breaker, well, task.token) end
  end
  for _, name in ipairs(task.fields.limiters) do limits.wake(name) end
end

-- A task of this tenant stopped running: unpark it if that was what it waited for.
function leases.has_room_again(tenant)
  if tenant[STATUS] == PARKED then fair.make_ready(tenant) end
  local queue = tenant[QUEUE]
  if queue.weight > 0 and (queue.concurrency >= 0 or queue.rate > 0) then rung[queue.name] = queue end
end

-- What changed in the loans: a member for each call that has some left, by its token. The latest are
-- found first, and nothing is kept of a call whose loans have all ended.
writers[#writers + 1] = function()
  for name, loans in pairs(held) do
    local key = prefix .. 'held:' .. name
    local calls = not loans.ids and call('ZCARD', key) -- what this call lends is left in any case
    if loans.ids then write('ZADD', key, format('%.0f', loans.token), (loans.number or ARGV[3]) .. SEP .. loans.text) end
    sound[key] = not loans.ids or next(loans.ended) ~= nil
    for number, over in pairs(loans.ended) do
      local token = format('%.0f', number)
      local text = call('ZRANGEBYSCORE', key, token, token, 'LIMIT', 0, 1)[1]
      local left = text and leases.remaining_loans(text, over)
      if text then write('ZREM', key, text) end
      if left then write('ZADD', key, token, left) elseif text and calls then calls = calls - 1 end
    end
    if calls and calls <= 0 then
      write('UNLINK', prefix .. 'cancelling:' .. name)
      drop(lease_ends, name)
    end
  end
end

-- @part lend
-- Tasks that were chosen go on loan.
function begin(task)
  stats.began(tenant_of(task), stats.since(task), 1)
  task.started, task.due = now, 0
  if task.hold == 1 then unique.release(task) end
  emit('started', task, task.incarnation, task.attempts + 1, task.token) -- the reason says who runs it
end

-- A held one keeps the moment since when it could run.
local function lend_one(task, started)
  task.token, task.incarnation = meta.token, CALLER
  if task.deadline > 0 then drop(deadlines, task.id) end
  if started then begin(task) else task.due = stats.since(task) end
end

function leases.lend(taken, start, lease)
  meta.token = next_number(meta.token)
  if now + lease > (at_of(lease_ends, CALLER) or 0) then set_at(lease_ends, CALLER, now + lease) end
  local loans, ids = leases.loans_of(CALLER), {}
  lend_straight(taken, ids, min(start, #taken), lend_one)
  loans.token, loans.ids, loans.text = meta.token, ids, concat(ids, SEP)
end

-- @part fetch
-- Lend what was chosen, and mark what has started.
-- Reads from ARGV the names of queues and three for each mark: id, incarnation, token.
-- Note that held tasks have begun to run: from now on a crash is charged to them.
function mark(from, count)
  local codes = {}
  for place = 1, count do
    local arg = from + 3 * (place - 1)
    local task = find_task(ARGV[arg])
    if not task then
      codes[place] = 'u'
    elseif ARGV[arg + 1] ~= CALLER or not leased_as(task, CALLER, tonumber(ARGV[arg + 2])) then
      codes[place] = 'f'
    else
      codes[place] = 'a'
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
function leases.fetch(wanted, start, lease, from, to)
  local budget, taken = { wanted = wanted, visits = 4 * wanted + 64, drops = 256, bytes = BUDGET, counted = false }, {}
  for arg = from, to do
    local queue = read_queue(ARGV[arg])
    if queue and queue.paused == 0 and #taken < wanted and budget.bytes > 0 then serve(queue, budget, taken) end
  end
  if #taken > 0 then leases.lend(taken, start, lease) end
  follow_up()
  for arg = from, to do
    local queue = read_queue(ARGV[arg])
    if queue then
      rung[queue.name] = queue -- whoever leaves work behind wakes the next
      fair.set_alarm(queue)
    end
  end
  local more = budget.visits <= 0 or budget.drops <= 0 or budget.bytes <= 0
  if #taken == 0 then return {}, '', more end
  return leases.loans_of(CALLER).ids, leases.loans_of(CALLER).text, more
end

-- @part loans
-- What a worker gets to see of the tasks it was lent.
-- What is said of them is '' if all have been started and nothing happened to them before; or, by RS, for each '1' or
-- '0' for started, with attempts, generation, crashes, unroutable and deadline behind it, by US, where one of them is
-- not 0.
local function said(task)
  local first = task.started > 0 and '1' or '0'
  if task.attempts + task.generation + task.crashes + task.unroutable + task.deadline == 0 then return first end
  return concat({ first, task.attempts, task.generation, task.crashes, task.unroutable, exact(task.deadline) }, SEP)
end

-- The loans of this very call.
function loans(text, ids, start)
  local reply, notes, missing, usual = { text, '' }, {}, {}, #ids <= start
  for i = 1, #ids do
    local value = stored[i] or values[ids[i]]
    if not stored[i] then usual = false end
    if not value then missing[#missing + 1] = i end
    reply[i + 2] = value or false
  end
  for _, i in ipairs(missing) do reply[i + 2] = message_of(known(ids[i])) end
  if not usual then
    for i = 1, #ids do notes[i] = stored[i] and (i <= start and '1' or '0') or said(known(ids[i])) end
    reply[2] = concat(notes, '\30')
  end
  return reply
end

-- Those of a repeated call that are still on loan: the answer is kept without the messages.
function leases.loans_again(text)
  local parts = split(text, '\30')
  local reply, ids, notes, token = {}, {}, {}, tonumber(parts[6])
  local all = parts[7] ~= '' and split(parts[7], SEP) or {}
  if #all > 0 then load_tasks(all) end
  for _, id in ipairs(all) do
    local task = tasks[id]
    local value = task and leased_as(task, CALLER, token) and message_of(task)
    if value then
      ids[#ids + 1], notes[#notes + 1], reply[#ids + 3] = id, said(task), value
    end
  end
  parts[7] = concat(ids, SEP)
  reply[1], reply[2] = concat(parts, '\30'), concat(notes, '\30')
  return reply
end

-- @part uncollected
-- Tasks that were handed over (fast_path/hand_off) and not collected go back, charged to nobody.
-- 'handed:' of an incarnation is a list of at most one entry: number of its wait, token, id, message. Whoever waits
-- takes it out, so what still lies there is known to nobody else.
-- @share uncollected
uncollected = {}

-- What lies there for an incarnation: number of the wait, token, id; nil if there is nothing.
function uncollected.of(name)
  local entry = call('LINDEX', prefix .. 'handed:' .. name, 0)
  sound[prefix .. 'handed:' .. name] = true
  local number, token, id = match(entry or '', '^(%d+)\31(%d+)\31([^\31]*)\31')
  return tonumber(number), tonumber(token), id
end

-- Take a loan back that its worker never got to see; whether there was one.
function uncollected.take_back(name, token, id)
  load_tasks({ id })
  local task = tasks[id]
  if not (task and leased_as(task, name, token)) then return false end
  leases.recover(task, false, 'unclaimed')
  return true
end

-- The same with what lies there, if anything does.
function uncollected.clear(name)
  local _, token, id = uncollected.of(name)
  if not id then return false end
  write('UNLINK', prefix .. 'handed:' .. name)
  return uncollected.take_back(name, token, id)
end

-- Hand nothing over to an incarnation any more: its process is gone. What lies there is left to the caller; its id.
function uncollected.close(name)
  local number = match(call('HGET', prefix .. 'answers', name) or '', '^(%d+)\31take\31[oh]')
  sound[prefix .. 'answers'] = true
  if not number then return nil end
  local _, _, id = uncollected.of(name)
  write('HSET', prefix .. 'answers', name, number .. '\31take\31c')
  write('UNLINK', prefix .. 'handed:' .. name)
  return id
end

-- @part recover
-- Take everything from an incarnation whose process is gone.
-- The twin of memory/recovery.py.
-- @include lease.uncollected
local CRASH_LIMIT, ALONE = 3, 2
local RUNS, CRASHES = 2048, 128 -- what the two limits in a message's flags stay below

-- How often a task may run, and how many crashes it survives, plus one; 0: not said.
local function run_limits(task)
  local flags = tonumber(match(task.fields.base or task.head, '([^\31]*)$'))
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
function leases.recover(task, crashed, why, blocked)
  local attempt, token = task.attempts + 1, task.token
  local tenant = tenant_of(task)
  if crashed then
    if task.started == 0 then stats.began(tenant, stats.since(task), 1) end -- nobody had said so
    stats.add(tenant[QUEUE], FAILED, 1)
  end
  leases.end_lease(task)
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
      outcome.set_error(task, 'Poison', 'its process died ' .. task.crashes .. ' times in a row')
    else
      outcome.set_error(task, 'ProcessDied', 'its process died in attempt ' .. attempt .. ', its last')
    end
    finish(task, DEAD, fate)
    emit('dead', task, fate, attempt, token)
  else
    task.reason = reason
    if crashed then stats.add(tenant[QUEUE], RETRIED, 1) end
    queue_up(task, not blocked) -- behind its neighbors, if it kept them from running
    emit('recovered', task, reason, attempt, token)
  end
  leases.has_room_again(tenant)
end

-- Up to `most` loans of an incarnation, the latest first, and whether it has more. Calls are looked at
-- from the last one on, and no further than needed.
local function holdings(incarnation, most)
  local key = prefix .. 'held:' .. incarnation
  local ids, tokens, count, place, calls = {}, {}, 0, 0, call('ZCARD', key)
  local left = false
  while count < most and place < calls do
    local row = call('ZREVRANGE', key, place, place, 'WITHSCORES')
    local _, start = leases.opened_loans(row[1])
    local all = split(sub(row[1], start + 1), SEP)
    place = place + 1
    for i = #all, 1, -1 do
      if count == most then left = true break end
      count = count + 1
      ids[count], tokens[count] = all[i], tonumber(row[2])
    end
  end
  load_tasks(ids)
  return ids, tokens, left or place < calls
end

-- Up to `most` loans go back, from the last to the first: each goes to the front of its level,
-- which restores their order. `started` (or nil: nobody saw it) says to whom a crash is charged, and
-- `blocked`, if given, which of these kept the others from running.
function leases.give_back(incarnation, started, most, blocked)
  local lay = uncollected.close(incarnation) -- handed over, and nobody came for it
  local ids, tokens, more = holdings(incarnation, most)
  for i = 1, #ids do
    local task = tasks[ids[i]]
    if task and leased_as(task, incarnation, tokens[i]) then
      local crashed
      if started then crashed = started[task.id] or false else crashed = task.id ~= lay and may_have_run(task) end
      leases.recover(task, crashed, nil, crashed and blocked and blocked[task.id])
    else
      leases.end_loans(incarnation, tokens[i], ids, i, i)
    end
  end
  if not more then drop(lease_ends, incarnation) end
  follow_up()
  return #ids, more
end
