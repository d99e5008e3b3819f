-- straight_ready: a worker that asks before it sleeps and finds nothing to fetch, before the engine wakes up.
--
-- This must equal what lua/ready does where nothing is due and no queue has a limit, in every key and in the answer:
-- tests/broker/redis/test_straight_small.py compares them. Whatever is unusual it leaves to the engine, with nothing written.
-- It stands in the engine, since the verbs of a library share their parts in one order. Reads KEYS[1] and ARGV as ready.
-- Returns the reply, or nil.

local NO_QUEUE = ('\0'):rep(16)

-- Whether one of the queues could be fetched from; nil if one has a limit, which may be in the way.
local function find_runnable(names)
  local found, settings, some = call('HMGET', P .. 'queues', unpack(names)), nil, false
  for i = 1, #names do
    local _, weight = unpacked('<dd', found[i] or NO_QUEUE)
    if weight > 0 then
      settings = settings or call('HMGET', P .. 'settings', unpack(names))
      local paused, _, _, _, _, _, concurrency, rate = 0, nil, nil, nil, nil, nil, -1, 0
      if settings[i] then paused, _, _, _, _, _, concurrency, rate = unpacked(CONF, settings[i]) end
      if concurrency >= 0 or rate > 0 then return nil end
      some = some or paused == 0
    end
  end
  return some
end

local function look()
  if M.next <= now or M.laying + M.unpins > 0 or not ARGV[4] or M.jobs > 0 and call('EXISTS', P .. 'jobs') == 1 then return nil end
  local some = find_runnable({ unpack(ARGV, 4) })
  if some == nil then return nil end
  local due, holds = M.next < NEVER and M.next, 0
  if not some then
    local at = min(due or huge, now + tonumber(ARGV[3]))
    if M.alarm <= now or at < M.alarm - 0.001 then M.alarm, holds = at, 1 end
  end
  call('HSET', P .. 'meta', 'numbers', packed_few())
  return { some and 1 or 0, due and exact(due - now) or '', holds }
end

-- @each
if VERB == 'ready' then
  local reply = look()
  if reply then return reply end
end
-- @end
