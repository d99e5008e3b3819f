-- clock: the broker's time, which follows the server's clock. The twin of model/clock.py, which says how.
--
-- ARGV[1] is, for tests, 't' and a moment ('t' alone: the last one), or 'r' and what the server's clock is to
-- say; otherwise ''. Behind it may stand 'a' and how far time is ahead of the clock, from `hello`. Reads no KEYS.
-- Returns nothing by itself.
-- @const SILENCE=20
function server_clock(told)
  if told ~= '' then
    local raw = string.match(told, 'r([%d.]+)')
    if raw then return tonumber(raw) end
  end
  local t = redis.call('TIME')
  return t[1] + t[2] / 1000000
end

-- Time and how far it is ahead of the clock, `passed` seconds after the moment before.
function slewed(last, ahead, clock, passed)
  local less = passed / 10
  if ahead > 0 then ahead = math.max(ahead - less, 0) elseif ahead < 0 then ahead = math.min(ahead + less, 0) end
  return math.max(last, clock + ahead), ahead
end
