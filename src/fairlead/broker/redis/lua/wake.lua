-- wake: put a wake-up back that nobody here could use. At most one token in a bell.
--
-- ARGV     names of the bells, without the prefix
-- Returns  how many were rung
-- @flags allow-oom
local rung = 0
for _, name in ipairs(ARGV) do
  local key = KEYS[1] .. name
  if redis.call('EXISTS', key) == 0 then
    redis.call('RPUSH', key, 1)
    rung = rung + 1
  end
end
return rung
