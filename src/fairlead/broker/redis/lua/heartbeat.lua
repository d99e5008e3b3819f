-- heartbeat: keep all leases of an incarnation, say what it must stop, and take back what it does not know of.
--
-- ARGV     clock, incarnation, lease, the worker's record or '', the order that it is under or '', how many queues
--          it serves, these;
--          the number of its last exchange that was answered, or -1; between which tokens to compare (above
--          the first, up to the second), then each token under which it believes to hold something, from
--          the lowest to the highest, with the ids by US
-- Returns  by RS: time, lost ones (id GS token) by US, cancelled ones the same way, paused queues by US,
--          how many were taken back, whether there is more to compare, the order that stands or ''
-- @flags allow-oom
-- @library upkeep
-- @include engine lease.recover workers.registered
local MOST_CANCELLED = 1000
local name, lease, record, many = ARGV[2], tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[6])
local answered, above, upto = tonumber(ARGV[7 + many]), ARGV[8 + many], ARGV[9 + many]
local lost, cancelled, paused, named, tokens = {}, {}, {}, {}, {}
local ends = at_of(lease_ends, name)
if ends and now + lease > ends then set_at(lease_ends, name, now + lease) end
for i = 10 + many, #ARGV, 2 do
  tokens[#tokens + 1] = tonumber(ARGV[i])
  named[tokens[#tokens]] = ARGV[i + 1]
end

-- The calls that lent something, from the latest on. Where the ids are named in the order they were lent in, one
-- comparison does for all of them.
local most = #tokens + 1000
local rows = call('ZREVRANGEBYSCORE', prefix .. 'held:' .. name, upto, '(' .. above, 'WITHSCORES', 'LIMIT', 0, most)
local more, reached = #rows == 2 * most, 0
local ids, tokens_of = {}, {} -- loans that nobody named, the latest first
for place = 1, #rows, 2 do
  local token = tonumber(rows[place + 1])
  local number, start = leases.opened_loans(rows[place])
  local text, said = sub(rows[place], start + 1), named[token]
  named[token], reached = nil, token
  if said ~= text then
    local all, here, mine = split(text, SEP), {}, {}
    for _, id in ipairs(all) do here[id] = true end
    for _, id in ipairs(said and split(said, SEP) or {}) do
      mine[id] = true
      if not here[id] then lost[#lost + 1] = id .. '\29' .. format('%.0f', token) end
    end
    for i = #all, 1, -1 do
      if number <= answered and not mine[all[i]] then ids[#ids + 1], tokens_of[#tokens_of + 1] = all[i], token end
    end
  end
end
for _, token in ipairs(tokens) do -- those below the last row that was read are seen to by the next call
  if named[token] and (token > reached or not more) then
    for _, id in ipairs(split(named[token], SEP)) do lost[#lost + 1] = id .. '\29' .. format('%.0f', token) end
  end
end

local count = min(#ids, STEP)
more = more or #ids > count
load_tasks({ unpack(ids, 1, count) })
for i = 1, count do
  local task = tasks[ids[i]]
  if task and leased_as(task, name, tokens_of[i]) then
    leases.recover(task, false, 'unclaimed')
  else
    leases.end_loans(name, tokens_of[i], ids, i, i)
  end
end
if count > 0 then follow_up() end

local asked = {}
for _, each in ipairs(firsts(agenda('cancelling:' .. name), MOST_CANCELLED)) do asked[#asked + 1] = each[2] end
load_tasks(asked)
for _, id in ipairs(asked) do
  local task = tasks[id]
  if task and task.state == RUNNING and task.cancelling and task.incarnation == name then
    cancelled[#cancelled + 1] = id .. '\29' .. format('%.0f', task.token)
  end
end
local order
if record ~= '' then
  order = registered.beat(name, record, ARGV[5])
  for i = 7, 6 + many do
    local queue = read_queue(ARGV[i])
    if queue and queue.paused == 1 then paused[#paused + 1] = ARGV[i] end
  end
end
return conclude() or concat({ exact(now), concat(lost, SEP), concat(cancelled, SEP), concat(paused, SEP), count,
  more and 1 or 0, order or registered.order(name) }, '\30')
