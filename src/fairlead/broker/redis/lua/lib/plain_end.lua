-- plain_end: the short way for the usual end: completed, nothing special before or after.
--
-- Works on records as they are stored: tasks of one call share the first part, tasks of a tenant
-- the second, and what is found out about either is found out once. Reads KEYS[1] and seven of ARGV
-- for each settlement, see lib/settle. Returns nothing by itself.
local fates, selves
-- @each
fates, selves = {}, {}
-- @end

-- A running task that nothing happened to so far, and what its record begins with once completed.
local function fate_of(bytes)
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

-- Whose it is, if it has no unique key, no limiters and no reason.
local function self_of(bytes, incarnation)
  local s = selves[bytes]
  if s == nil then
    local hold, held_by, _, reason, head = unpacked(SELF, bytes)
    local h = parsed(head)
    s = false
    if hold == 0 and reason == '' and held_by == incarnation and not h.limited then
      local q = read_queue(h.queue, true)
      if q.charge == 0 then
        s = { t = q.tenants[h.tenant] or make_tenant(q, h.tenant), q = q, queue = h.queue, tenant = h.tenant,
          shelf = agenda('done:' .. h.queue), limited = q.concurrency >= 0 or q.rate > 0 }
      end
    end
    selves[bytes] = s
  end
  return s
end

-- Whether it was such an end; then it has been carried out.
function end_plainly(id, i, r, incarnation, loans)
  local more = ARGV[i + 4]
  if ARGV[i + 2] ~= '6' or #more > 1 or ARGV[i + 6] ~= '' or tied[id] or tasks[id] or latest[id] then return false end
  local f = fate_of(sub(r, 1, FATE_END))
  if not f or f.token ~= ARGV[i + 1] then return false end
  local s = self_of(sub(r, FATE_END + 1, -1 - SIZE_LENGTH), incarnation)
  if not s then return false end
  local t, q, key = s.t, s.q, s.queue .. more
  local fate, n = f.next[key], #written
  if not fate then fate = f.make(q, more == 'R' and 2 or 0) f.next[key] = fate end
  local place, life, size, extra = unpacked(SIZE, r, #r - SIZE_LENGTH + 1)
  if more == 'R' then
    extra = #ARGV[i + 5]
    write('HSET', P .. 'results', id, ARGV[i + 5])
    r = fate .. sub(r, FATE_END + 1, -1 - SIZE_LENGTH) .. pack(SIZE, place, life, size, extra)
  else
    r = fate .. sub(r, FATE_END + 1)
  end
  written[n + 1], written[n + 2], latest[id] = id, r, r
  loans.ended[#loans.ended + 1] = id
  add_bulk(s.shelf, id, now + q.keep)
  q.done_bytes = q.done_bytes + 100 + size + extra
  local d = q.counts
  t[COUNT + RUNNING], t[COUNT + COMPLETED] = t[COUNT + RUNNING] - 1, t[COUNT + COMPLETED] + 1
  d[RUNNING], d[COMPLETED] = d[RUNNING] - 1, d[COMPLETED] + 1
  t[CHANGED], q.changed = true, true
  ended[s.queue] = (ended[s.queue] or 0) + 1
  row('completed', COMPLETED, s.queue, s.tenant, f.number, f.attempt, '', id)
  if t[STATUS] == PARKED or s.limited then has_room_again(t) end
  return true
end
