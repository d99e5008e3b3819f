-- beat: keep all leases of an incarnation, and say what it must stop.
--
-- KEYS[1]  prefix of the shard
-- ARGV     clock, incarnation, lease, the worker's record or '', how many queues it serves, these,
--          then id and token of each lease it believes to hold
-- Returns  by RS: time, places of the lost ones by comma, cancelled ones (id GS token) by US,
--          paused queues by US
-- @flags allow-oom
-- @library upkeep
-- @include engine
local name, lease, record, many = ARGV[2], tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])
local lost, cancelled, paused, ids = {}, {}, {}, {}
local ends = at_of(lease_ends, name)
if ends and now + lease > ends then set_at(lease_ends, name, now + lease) end
for i = 6 + many, #ARGV, 2 do ids[#ids + 1] = ARGV[i] end
for i = 1, #ids, 1000 do load_tasks({ unpack(ids, i, min(i + 999, #ids)) }) end
for n, id in ipairs(ids) do
  local task, token = tasks[id], tonumber(ARGV[6 + many + 2 * n - 1])
  if not task or not leased_as(task, name, token) then lost[#lost + 1] = n - 1 end
end
for _, id in ipairs(firsts(agenda('cancelling:' .. name), 10000)) do
  local task = known(id[2])
  if task and task.state == RUNNING and task.cancelling and task.incarnation == name then
    cancelled[#cancelled + 1] = id[2] .. '\29' .. format('%.0f', task.token)
  end
end
if record ~= '' then
  write('HSET', P .. 'workers', name, record)
  set_at(agenda('seen'), name, now + 15)
  for i = 6, 5 + many do
    local q = read_queue(ARGV[i])
    if q and q.paused == 1 then paused[#paused + 1] = ARGV[i] end
  end
end
return conclude() or concat({ exact(now), concat(lost, ','), concat(cancelled, SEP), concat(paused, SEP) }, '\30')
