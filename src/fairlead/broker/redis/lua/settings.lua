-- settings: what was set for queues, tenants and limiters, a part of one kind in each call.
--
-- KEYS[1]  prefix of the shard
-- ARGV     clock, the kind (q queues, t tenants, l limiters), where to go on ('0' to begin, '': only what is named),
--          names
-- Returns  the time; where to go on ('0': nowhere); of each its name, and what is stored: lib/queue, lib/settings (its
--          name is queue or '', US, tenant), lib/limiter and lib/breaker; nil of what is named and was not set
-- @reads
-- @include text
-- @include base
-- @include read
keep_clock()
local PART = 200 -- that are looked at in one call, about
local KEYS_OF = { q = P .. 'settings', t = P .. 'tenant-settings', l = P .. 'limiters' }
local key, reply = KEYS_OF[ARGV[2]], { exact(now), '0' }
if ARGV[3] == '' then
  for i = 4, #ARGV do reply[#reply + 1], reply[#reply + 2] = ARGV[i], call('HGET', key, ARGV[i]) end
  return reply
end
local page = call('HSCAN', key, ARGV[3], 'COUNT', PART)
reply[2] = page[1]
for i = 1, #page[2] do reply[#reply + 1] = page[2][i] end
return reply
