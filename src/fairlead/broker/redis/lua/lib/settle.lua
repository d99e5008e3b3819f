-- Ends of attempts: what workers say of them, carried out.

-- @part settle
-- Carry out decided moves under leases that are in force, refuse the others.
-- Reads from ARGV runs of settlements in their order: 'P' (completed, and nothing else to say), token,
-- 'R' if they have results, count, run times (doubles), then the ids, each with its result; or 'G', count, and seven
-- for each: id, token, to, run time, more, result, error. `more` is 'R' (a result) or '-', then by US: delay, whether
-- the attempt counts, keep, reason; '' is '-' alone. Returns the codes: a applied, f fenced, u unknown.
--
-- Plain ends that stand side by side go together: fast_path/ends.plain_ends says which they are.
local long
local function settle_one(id, token, to, run_time, more, result, err, plain)
  local task = known(id)
  long = long + 1
  if task and leased_as(task, CALLER, token) then
    apply(task, to, run_time, more, result, err, plain)
    return 'a'
  elseif not find_task(id) then
    return 'u'
  end
  stats.add(read_queue(task.fields.queue), FENCED, 1)
  emit('fenced', task, '', 0, token)
  return 'f'
end

-- Where the ids of a run stand: the first, the distance from one to the next, and how many.
local function run_at(arg)
  if ARGV[arg] == 'G' then return arg + 2, 7, tonumber(ARGV[arg + 1]) end
  return arg + 5, ARGV[arg + 2] == 'R' and 2 or 1, tonumber(ARGV[arg + 3])
end

-- One that is not plain; `place` is its own in the run at ARGV[arg].
local function settle_at(arg, place, id)
  if ARGV[arg] == 'G' then
    local at = arg + 2 + 7 * place
    return settle_one(id, tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), ARGV[at + 4], ARGV[at + 5],
      ARGV[at + 6])
  end
  local results = ARGV[arg + 2] == 'R'
  return settle_one(id, tonumber(ARGV[arg + 1]), COMPLETED, unpacked('<d', ARGV[arg + 4], 8 * place + 1), results and 'R' or '',
    results and ARGV[arg + 6 + 2 * place] or nil, '')
end

-- Plain ends as the engine sees them: of those that stand side by side all begin before one ends.
local function end_by_engine(plain, ids, _, from, to)
  for place = plain.firsts[from], plain.lasts[to] do
    local task = known(ids[place])
    if task.started == 0 then changed[task.id] = task begin(task) end
  end
  for group = from, to do
    local run, first, last = plain.runs[group], plain.firsts[group], plain.lasts[group]
    for place = first, last do
      settle_one(ids[place], run.number, COMPLETED, run.times[place - run.base], run.results and 'R' or '',
        run.results and ARGV[run.first + 2 * (place - run.base) - 1] or nil, '', true)
    end
    long = long - (last - first + 1)
  end
end

-- The codes, where the next argument stands, and how many were not plain.
function settle(from, runs)
  long = 0
  if runs == 0 then return '', from, 0 end
  local ids, total, to, twice = {}, 0, from, false
  for _ = 1, runs do
    local first, step, count = run_at(to)
    to = first + count * step
    for id_at = first, to - 1, step do
      local id = ARGV[id_at]
      total = total + 1
      if latest[id] then twice = true end
      ids[total], latest[id] = id, true -- until it has ended
    end
  end
  tie.load(ids)
  dependents.load(ids)
  local records = call('HMGET', prefix .. 'records', unpack(ids))
  sound[prefix .. 'records'] = true
  local codes, plain, arg = {}, straight.plain_ends(), from
  total = 0
  for _ = 1, runs do
    local first, step, count = run_at(arg)
    if ARGV[arg] == 'P' and not twice then straight.find_plain(plain, arg, first, step == 2, count, total, ids, records, codes) end
    arg, total = first + count * step, total + count
  end
  local next = 1 -- of the groups of plain ends
  local function end_plain(before)
    local first = next
    while next <= plain.count and plain.firsts[next] < before do next = next + 1 end
    if next > first then (STRAIGHT and straight.end_straight or end_by_engine)(plain, ids, records, first, next - 1) end
  end
  if plain.total < total or not STRAIGHT then
    for k = 1, total do latest[ids[k]] = nil end
    total, arg = 0, from
    for _ = 1, runs do
      local first, step, count = run_at(arg)
      for k = 0, count - 1 do
        total = total + 1
        if not codes[total] then
          end_plain(total)
          raw[ids[total]] = records[total] or nil
          codes[total] = settle_at(arg, k, ids[total])
        end
      end
      arg = first + count * step
    end
  end
  end_plain(total + 1)
  if STRAIGHT then straight.count_flows(plain) end
  follow_up()
  return concat(codes), to, long
end

-- @part apply
-- One settlement, carried out whatever it says.
local EVENTS = { 'snoozed', nil, 'released' }
local SMOOTHING = 64 -- settlements over which the average run time of a queue forgets

-- Correct what the dispatch charged by what the attempt took, in average tasks of the queue.
local function charge(tenant, cost, run_time)
  local queue, each = tenant[QUEUE], run_time / cost
  queue.average = queue.average + (queue.average ~= 0 and (each - queue.average) / SMOOTHING or each)
  if queue.average > 0 then
    tenant[TAG] = tenant[TAG] + (run_time / queue.average - cost) * STRIDE * UNIT / tenant[WEIGHT]
    tenant[CHANGED] = true
    if tenant[STATUS] == READY then set_at(queue.ready, tenant[NAME], tenant[TAG]) end
  end
end

-- As model.lifecycle.went_well: what an attempt says of what its task depends on; nil: nothing.
local function went_well(to, burn, reason, err)
  if to == COMPLETED then return true end
  local counts = burn and err ~= '' and (reason == '' or reason == 'exhausted')
  if counts and (to == RETRYING or to == DEAD) then return false end
end

-- It was dispatched and did not run: others may go in its place.
local function return_rates(task, tenant)
  limits.return_one(tenant[QUEUE])
  if tenant[GATED] == 1 then limits.return_one(gate_of(tenant)) end
  for _, name in ipairs(task.fields.limiters) do limits.return_one(limits.read(name, true)) end
end

function apply(task, to, run_time, more, result, err, plain)
  local delay, burn, keep, reason = 0, true, nil, ''
  if #more > 1 then
    local parts = split(more, SEP)
    delay, burn, keep, reason = tonumber(parts[2]), parts[3] == '1', tonumber(parts[4]), concat(parts, SEP, 5)
  end
  local tenant, attempt, token = tenant_of(task), task.attempts + 1, task.token
  local meant, ran = to, burn or run_time > 0 or reason == 'snoozed' -- as model.lifecycle.Settlement.ran
  if task.started == 0 and (burn or reason == 'snoozed') then begin(task) end -- nobody had said so
  if task.cancelling and to ~= COMPLETED then to = CANCELLED end
  if task.started > 0 then stats.times(stats.of(tenant[QUEUE]), H_RUN, { run_time }, 1, 1, 1) end
  if burn and meant ~= COMPLETED and meant ~= CANCELLED then
    stats.add(tenant[QUEUE], FAILED, 1)
    if to < COMPLETED then stats.add(tenant[QUEUE], RETRIED, 1) end
  end
  if not ran then return_rates(task, tenant) end
  leases.end_lease(task, task.fields.limited and went_well(to, burn, reason, err))
  if tenant[QUEUE].charge == 1 and ran then charge(tenant, task.fields.cost, run_time) end
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
  leases.has_room_again(tenant)
end

-- @part cancel
-- End a task that waits, ask for the end of one that runs.
-- d done, r requested, n unchanged, and the state it has now.
function cancel_task(task)
  if task.state >= COMPLETED then return 'n' .. task.state end
  if task.state ~= RUNNING then
    finish(task, CANCELLED, '')
    emit('cancelled', task)
    return 'd8'
  end
  if not task.cancelling then
    task.cancelling = true
    changed[task.id] = task
    set_at(agenda('cancelling:' .. task.incarnation), task.id, task.token)
    emit('cancelling', task, '', task.attempts + 1, task.token)
    send(task.incarnation, 'cancel', task.id, 0, task.token)
  end
  return 'r4'
end
