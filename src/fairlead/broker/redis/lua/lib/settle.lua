-- settle: carry out decided moves under leases that are in force, refuse the others.
--
-- Reads KEYS[1] and, from ARGV, runs of settlements in their order: 'P' (completed, and nothing else
-- to say), token, 'R' if they have results, count, run times (doubles), then the ids, each with its
-- result; or 'G', count, and seven for each: id, token, to, run time, more, result, error. `more` is
-- 'R' (a result) or '-', then by US: delay, whether the attempt counts, keep, reason; '' is '-'
-- alone. Returns the codes: a applied, f fenced, u unknown.
--
-- Plain ends that stand side by side go together: lib/straight_settle says which they are.
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
  stats.add(read_queue(task.h.queue), FENCED, 1)
  emit('fenced', task, '', 0, token)
  return 'f'
end

-- Where the ids of a run stand: the first, the distance from one to the next, and how many.
local function run_at(i)
  if ARGV[i] == 'G' then return i + 2, 7, tonumber(ARGV[i + 1]) end
  return i + 5, ARGV[i + 2] == 'R' and 2 or 1, tonumber(ARGV[i + 3])
end

-- One that is not plain; `k` is its place in the run at `i`.
local function settle_at(i, k, id)
  if ARGV[i] == 'G' then
    local at = i + 2 + 7 * k
    return settle_one(id, tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), ARGV[at + 4], ARGV[at + 5],
      ARGV[at + 6])
  end
  local results = ARGV[i + 2] == 'R'
  return settle_one(id, tonumber(ARGV[i + 1]), COMPLETED, unpacked('<d', ARGV[i + 4], 8 * k + 1), results and 'R' or '',
    results and ARGV[i + 6 + 2 * k] or nil, '')
end

-- Plain ends as the engine sees them: of those that are alike all begin before one ends.
local function end_by_engine(plain, ids, _, from, to)
  for g = from, to do
    local run, first, last = plain.runs[g], plain.firsts[g], plain.lasts[g]
    for n = first, last do
      local task = known(ids[n])
      if task.started == 0 then changed[task.id] = task begin(task) end
    end
    for n = first, last do
      settle_one(ids[n], run.number, COMPLETED, run.times[n - run.base], run.results and 'R' or '',
        run.results and ARGV[run.first + 2 * (n - run.base) - 1] or nil, '', true)
    end
    long = long - (last - first + 1)
  end
end

-- The codes, where the next argument stands, and how many were not plain.
function settle(from, runs)
  long = 0
  if runs == 0 then return '', from, 0 end
  local ids, n, to, twice = {}, 0, from, false
  for _ = 1, runs do
    local first, step, count = run_at(to)
    to = first + count * step
    for k = first, to - 1, step do
      local id = ARGV[k]
      n = n + 1
      if latest[id] then twice = true end
      ids[n], latest[id] = id, true -- until it has ended
    end
  end
  load_ties(ids)
  local records = call('HMGET', P .. 'records', unpack(ids))
  sound[P .. 'records'] = true
  local codes, plain, i = {}, plain_ends(), from
  n = 0
  for _ = 1, runs do
    local first, step, count = run_at(i)
    if ARGV[i] == 'P' and not twice then find_plain(plain, i, first, step == 2, count, n, ids, records, codes) end
    i, n = first + count * step, n + count
  end
  local next = 1 -- of the groups of plain ends
  local function end_plain(before)
    local first = next
    while next <= plain.count and plain.firsts[next] < before do next = next + 1 end
    if next > first then (STRAIGHT and end_straight or end_by_engine)(plain, ids, records, first, next - 1) end
  end
  if plain.total < n or not STRAIGHT then
    for k = 1, n do latest[ids[k]] = nil end
    n, i = 0, from
    for _ = 1, runs do
      local first, step, count = run_at(i)
      for k = 0, count - 1 do
        n = n + 1
        if not codes[n] then
          end_plain(n)
          raw[ids[n]] = records[n] or nil
          codes[n] = settle_at(i, k, ids[n])
        end
      end
      i = first + count * step
    end
  end
  end_plain(n + 1)
  if STRAIGHT then count_flows(plain) end
  follow_up()
  return concat(codes), to, long
end
