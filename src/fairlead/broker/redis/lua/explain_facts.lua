-- explain_facts: where a task stands, without walking anything large.
--
-- ARGV     clock, id, how many of the tasks that it waits for, how many entries of its line at most
-- Returns  time, the eight of find, state and settings of its queue, its tenant's record, and what else
--          decides: a list of what it waits for (id and state, 0 if it is not known), its tenant's limit, how many
--          tenants are runnable, how many of these before its own (-1: it is not), its place in its line (-1: too far back), and a list of
--          limiters: name, record, how many wait there, whether the task itself needs it
-- @reads
-- @include call.split call.plan sorted_index.agenda task.record task.tasks task.whole queue.queue queue.tenant
-- @include call.keep_clock
keep_clock()
local reply, id = { exact(now) }, ARGV[2]
local task, parents = whole(id, reply, 1, 'info')
if not task then return reply end
local queue_name, tenant_name = task.fields.queue, task.fields.tenant
reply[10], reply[11] = call('HGET', prefix .. 'queues', queue_name), call('HGET', prefix .. 'settings', queue_name)
reply[12] = call('HGET', prefix .. 'tenants:' .. queue_name, tenant_name)
reply[13] = {}
for i = 1, min(#parents, tonumber(ARGV[3])) do
  local parent = find_task(parents[i])
  reply[13][2 * i - 1], reply[13][2 * i] = parents[i], parent and parent.state or 0
end
reply[14], reply[15], reply[16], reply[17], reply[18] = false, 0, -1, -1, {}
if task.state ~= QUEUED then return reply end
reply[14] = call('HGET', prefix .. 'gates', queue_name .. SEP .. tenant_name)
reply[15] = max(call('ZCARD', prefix .. 'ready:' .. queue_name) - 1, 0) -- one member is none
reply[16] = call('ZRANK', prefix .. 'ready:' .. queue_name, tenant_name) or -1
reply[17] = call('LPOS', prefix .. 'line:' .. queue_name .. ':' .. task.fields.level .. ':' .. tenant_name, entry_of(task), 'MAXLEN',
  ARGV[4]) or -1

local function add(name, needed)
  local waiting, lobby, size = 0, call('ZRANGE', prefix .. 'lobby:' .. name, 0, 999, 'WITHSCORES'), #reply[18]
  for i = 2, #lobby, 2 do waiting = waiting + lobby[i] end
  reply[18][size + 1], reply[18][size + 2] = name, call('HGET', prefix .. 'limiters', name)
  reply[18][size + 3], reply[18][size + 4] = waiting, needed and 1 or 0
end

local queue, named = read_queue(queue_name), {}
for _, name in ipairs(task.fields.limiters) do
  if not named[name] then add(name, true) end
  named[name] = true
end
local tenant = read_tenant(queue, tenant_name)
if tenant and tenant[STATUS] == AT_LIMITER and not named[tenant[SPOT]] then add(tenant[SPOT], false) end
return reply
