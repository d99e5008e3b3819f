-- fates: what is found out once about records that begin the same: those of tasks that were lent by
-- one call, or that ended in one.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
local fates
-- @each
fates = {}
-- @end

function fate_of(r)
  local bytes = sub(r, 1, FATE_END)
  local f = fates[bytes]
  if not f then
    local state, flags, policy, attempts, crashes, unroutable, generation, token, begun, due, deadline, _, expires =
      unpacked(FATE, bytes)
    f = { since = due, state = state, parts = flags % 64, aside = flags % 128 >= ASIDE, policy = policy, attempt = attempts + 1, generation = generation,
      token = format('%.0f', token), number = token, expires = expires, held = begun == 0, untouched = state == RUNNING
      and flags == 0 and crashes + unroutable + deadline == 0 and (due == 0 or begun == 0) }
    f.waits_first = state == QUEUED and flags + attempts + crashes + unroutable + generation + token + deadline == 0
    fates[bytes] = f
  end
  return f
end

-- How the record of such a task begins once it is completed, with a result or without.
function completed_fate(f, q, results)
  local key = results and q.name .. SEP or q
  if not f[key] then
    f[key] = pack(FATE, COMPLETED, results and 2 or 0, f.policy, f.attempt, 0, 0, f.generation, f.number, 0, 0, 0,
      now, now + q.keep)
  end
  return f[key]
end
