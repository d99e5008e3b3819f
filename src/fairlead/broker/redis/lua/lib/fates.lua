-- fates: what is found out once about records that are the same, or that begin the same.
--
-- Tasks lent by one call share FATE, those of one tenant SELF, and if they are of one size their
-- whole records are the same. Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @share ends
local fates
-- @each
fates, ends = {}, {}
-- @end

function fate_of(bytes)
  local f = fates[bytes]
  if not f then
    local state, flags, policy, attempts, crashes, unroutable, generation, token, _, due, deadline, _, expires =
      unpacked(FATE, bytes)
    f = { state = state, parts = flags % 128, policy = policy, attempt = attempts + 1, generation = generation,
      token = format('%.0f', token), number = token, expires = expires, untouched = state == RUNNING
      and flags == 0 and crashes + unroutable + due + deadline == 0 }
    fates[bytes] = f
  end
  return f
end

-- How a running task ends in the usual way, if nothing happened to it so far; false: not that way.
function end_of(r, incarnation)
  local f, e = fate_of(sub(r, 1, FATE_END)), false
  local own = sub(r, FATE_END + 1, -1 - SIZE_LENGTH)
  local o = f.untouched and owner(own)
  if o and o.plain and o.incarnation == incarnation then
    local q = read_queue(o.h.queue, true)
    if q.charge == 0 then
      local life, size = unpacked(SIZE, r, #r - SIZE_LENGTH + 1)
      e = { fate = f, token = f.token, own = own, life = life, size = size,
        tenant = q.tenants[o.h.tenant] or make_tenant(q, o.h.tenant) }
    end
  end
  ends[r] = e
  return e
end

-- The record that is left of it, with so many bytes of a result; -1: it has none.
function ended_record(e, bytes)
  local f, q, parts = e.fate, e.tenant[QUEUE], bytes < 0 and 0 or 2
  local key = q.name .. parts
  if not f[key] then
    f[key] = pack(FATE, COMPLETED, parts, f.policy, f.attempt, 0, 0, f.generation, f.number, 0, 0, 0, now, now + q.keep)
  end
  local r = f[key] .. e.own .. pack(SIZE, e.life, e.size, max(bytes, 0))
  e[bytes] = r
  return r
end
