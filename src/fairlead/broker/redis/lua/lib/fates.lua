-- fates: what is found out once about records whose first or second part is the same.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
local fates, selves
-- @each
fates, selves = {}, {}
-- @end

-- A running task that nothing happened to so far, and what its record begins with once completed.
function fate_of(bytes)
  local f = fates[bytes]
  if f == nil then
    local state, flags, policy, attempts, crashes, unroutable, generation, token, started, due, deadline =
      unpacked(FATE, bytes)
    f = false
    if state == RUNNING and flags == 0 and crashes + unroutable + due + deadline == 0 then
      f = { token = format('%.0f', token), number = token, attempt = attempts + 1, next = {} }
      f.make = function(q, parts)
        return pack(FATE, COMPLETED, parts, policy, attempts + 1, 0, 0, generation, token, 0, 0, 0, now, now + q.keep)
      end
    end
    fates[bytes] = f
  end
  return f
end

-- What is the same for all tasks of a tenant that may end this way; false: they may not.
function self_of(own, incarnation)
  local s, o = selves[own], nil
  if s == nil then
    o = owner(own)
    s = false
    if o.plain and o.incarnation == incarnation then
      local q = read_queue(o.h.queue, true)
      s = q.charge == 0 and (q.tenants[o.h.tenant] or make_tenant(q, o.h.tenant))
    end
    selves[own] = s
  end
  return s
end
