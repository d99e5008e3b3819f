-- settings: what was set for queues, tenants and limiters, a part of one kind in each call.
--
-- ARGV     clock, the kind (q queues, t tenants, l limiters), where to go on ('0' to begin, '': only what is named),
--          names
-- Returns  the time; where to go on ('0': nowhere); of each its name, and what is stored: queue.queue, settings.settings (its
--          name is queue or '', US, tenant), limits.limiter and limits.breaker; nil of what is named and was not set
-- @reads
-- @include call.split call.plan call.keep_clock
keep_clock()
local PART = 200 -- that are looked at in one call, about
local KEYS_OF = { q = prefix .. 'settings', t = prefix .. 'tenant-settings', l = prefix .. 'limiters' }
local key, reply = KEYS_OF[ARGV[2]], { exact(now), '0' }
if ARGV[3] == '' then
  for i = 4, #ARGV do reply[#reply + 1], reply[#reply + 2] = ARGV[i], call('HGET', key, ARGV[i]) end
  return reply
end
local page = call('HSCAN', key, ARGV[3], 'COUNT', PART)
reply[2] = page[1]
for i = 1, #page[2] do reply[#reply + 1] = page[2][i] end
return reply
