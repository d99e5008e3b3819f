-- snapshot: counts of the queues, of their tenants that have work, and of limiters, without walking
-- tasks.
--
-- KEYS[1]  prefix of the shard
-- ARGV     clock, how many tenants of a queue, and limiters, at most
-- Returns  the time; whether there are more limiters, and a list of their names, their records
--          (lib/limiter, lib/breaker) and how many tenants wait there; then for each queue: name, state and settings as stored (lib/queue; nil: not
--          configured), whether there are more tenants, and a list of tenant names and their
--          records (lib/tenant)
-- @reads
-- @include text
-- @include base
-- @include read
keep_clock()
local reply, cursor, most, limiters = { exact(now) }, '0', tonumber(ARGV[2]), {}
local known = call('HRANDFIELD', P .. 'limiters', most, 'WITHVALUES')
for i = 1, #known, 2 do
  local lobby, waiting, n = call('ZRANGE', P .. 'lobby:' .. known[i], 0, most - 1, 'WITHSCORES'), 0, #limiters
  for k = 2, #lobby, 2 do waiting = waiting + lobby[k] end
  limiters[n + 1], limiters[n + 2], limiters[n + 3] = known[i], known[i + 1], waiting
end
reply[2], reply[3] = call('HLEN', P .. 'limiters') > most and 1 or 0, limiters
repeat
  local page = call('HSCAN', P .. 'queues', cursor, 'COUNT', 100)
  cursor = page[1]
  for i = 1, #page[2], 2 do
    local name, n = page[2][i], #reply
    local key = P .. 'active:' .. name
    local names, tenants = call('SRANDMEMBER', key, most), {}
    for k = 1, #names, 1000 do
      local part = { unpack(names, k, min(k + 999, #names)) }
      for j, record in ipairs(call('HMGET', P .. 'tenants:' .. name, unpack(part))) do
        tenants[#tenants + 1] = part[j]
        tenants[#tenants + 1] = record
      end
    end
    reply[n + 1], reply[n + 2], reply[n + 3] = name, page[2][i + 1], call('HGET', P .. 'settings', name)
    reply[n + 4], reply[n + 5] = call('SCARD', key) > most and 1 or 0, tenants
  end
until cursor == '0'
return reply
