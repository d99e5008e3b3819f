-- lead: hold a name for a while unless another holder does, or give it up.
--
-- ARGV     clock, name, holder, seconds ('': give it up)
-- Returns  term (0: nobody holds it), holder, until when, the time
--
-- 'leaders' has for each name its term, until when it is held, and the holder, by US. What cannot be read is held by
-- nobody. The twin of memory/leadership.py.
-- @flags allow-oom
-- @library upkeep
-- @include engine
-- MAX_LEADERS in broker/leadership.py.
-- @const LEADERS=100
local key, name, caller, seconds = prefix .. 'leaders', ARGV[2], ARGV[3], tonumber(ARGV[4])
local stored = call('HGET', key, name)
sound[key] = true
local function in_force(text)
  local term, till, holder = match(text, '^(%d+)\31([^\31]+)\31(.+)$')
  if (tonumber(till) or 0) > now then return tonumber(term), tonumber(till), holder end
end
local term, till, holder = in_force(stored or '')
if not term or holder == caller then
  if seconds then
    if not stored and call('HLEN', key) >= LEADERS then
      local all, over = call('HGETALL', key), {}
      for i = 1, #all, 2 do
        if not in_force(all[i + 1]) then over[#over + 1] = all[i] end
      end
      if #over == 0 then return redis.error_reply('FAIRLEAD leaders') end
      write_all('HDEL', key, over)
    end
    if not term then
      meta.token = next_number(meta.token)
      term = meta.token
    end
    till, holder = now + seconds, caller
    write('HSET', key, name, concat({ format('%.0f', term), exact(till), caller }, SEP))
  else
    if term then write('HDEL', key, name) end
    term, till, holder = 0, now, ''
  end
end
return conclude() or { format('%.0f', term), holder, exact(till), exact(now) }
