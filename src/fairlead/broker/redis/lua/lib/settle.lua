-- settle: carry out decided moves under leases that are in force, refuse the others.
--
-- Reads KEYS[1] and, from ARGV, runs of settlements in their order: 'P' (completed, and nothing else
-- to say), token, 'R' if they have results, count, run times (doubles), then the ids, each with its
-- result; or 'G', count, and seven for each: id, token, to, run time, more, result, error. `more` is
-- 'R' (a result) or '-', then by US: delay, whether the attempt counts, keep, reason; '' is '-'
-- alone. Returns the codes: a applied, f fenced, u unknown.
-- The long way: whatever the settlement says.
local long
local function settle_one(id, token, to, run_time, more, result, err)
  local task = known(id)
  long = long + 1
  if task and leased_as(task, CALLER, token) then
    apply(task, to, run_time, more, result, err)
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

-- The codes, where the next argument stands, and how many went the long way.
function settle(from, runs)
  long = 0
  if runs == 0 then return '', from, 0 end
  local ids, codes, n, i = {}, {}, 0, from
  for _ = 1, runs do
    local first, step, count = run_at(i)
    for k = 0, count - 1 do ids[n + k + 1] = ARGV[first + k * step] end
    n, i = n + count, first + count * step
  end
  load_ties(ids)
  local records = call('HMGET', P .. 'records', unpack(ids))
  sound[P .. 'records'] = true
  local owners = load_owners(records)
  n, i = 0, from
  for _ = 1, runs do
    local first, step, count = run_at(i)
    if ARGV[i] == 'P' then
      n = end_run(i, first, step, count, n, ids, records, owners, codes, settle_one)
    else
      for k = n + 1, n + count do raw[ids[k]] = records[k] or nil end
      for k = 0, count - 1 do
        local at = first + k * 7
        n = n + 1
        codes[#codes + 1] = settle_one(ids[n], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]),
          tonumber(ARGV[at + 3]), ARGV[at + 4], ARGV[at + 5], ARGV[at + 6])
      end
    end
    i = first + count * step
  end
  follow_up()
  return concat(codes), i, long
end
