-- straight_room: room for completed tasks, on the straight way of exchange (lib/straight_exchange).
--
-- What lib/shelf, trim and past do where nothing is past its time: the oldest of all goes, or those that hold much give their own
-- oldest. Nothing is written before `straight.write`; whatever is unusual is left to the engine. Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @share straight
-- Places in the record of a queue, see STATE in lib/queue; counts stand at Q_COUNT + state.
-- @const Q_CLOCK=1 Q_WEIGHT=2 Q_COUNT=2 Q_DONE=15 Q_DEAD=16 Q_UNTIL=17 Q_LARGE=18 Q_LOOK=20 Q_EMPTIED=21 Q_TAIL=22
straight = {}

function straight.has_type(kind, key)
  local found = call('TYPE', key).ok
  return found == kind or found == 'none'
end

-- What part of the room for completed tasks a tenant holds, as shelves.share.
function straight.share(q, t)
  return max((t[COUNT + COMPLETED] + t[COUNT + CANCELLED]) / max(q.conf.count, 1), t[DONE_BYTES] / max(q.conf.bytes, 1))
end

function straight.rank(q, t)
  if not q.ranked then q.ranked = {} end
  q.ranked[t[NAME]] = t
end

-- Keep a task that completed: with those of all tenants, or in the order of a tenant that holds much.
function straight.keep(q, t, id)
  local list
  if t[COUNT + COMPLETED] + t[COUNT + CANCELLED] >= q.conf.count / OWN or t[DONE_BYTES] >= q.conf.bytes / OWN then
    if t[OWNS] == 0 then q.homeless = true end -- from now on it has an order of its own
    q.own = q.own or {}
    list = q.own[t] or {}
    q.own[t] = list
    straight.rank(q, t)
  else
    list = q.kept or {}
    q.kept = list
  end
  list[#list + 1] = id
end

-- Until when a completed task is kept, by its record; nil if it is none, or there is more to forgetting it than that.
local function kept_until(r)
  if not r then return nil end
  local state, flags, _, _, _, _, _, _, _, _, _, _, expires = unpacked(FATE, r)
  if state ~= COMPLETED or flags ~= 0 and flags ~= 2 then return nil end
  return expires, flags
end

-- Forget these tasks of a queue, none of which is to be kept longer than `limit`. False if there is more to one of them.
local function forget_them(q, ids, records, limit)
  local names, s = {}, q.s
  for i = 1, #ids do
    local till, flags = kept_until(records[i])
    if not till or till > limit or sub(records[i], -SIZE_LENGTH, -9) ~= '\0\0\0\0' then return false end
    q.forgotten, q.parted = q.forgotten or {}, q.parted or {}
    names[i], q.forgotten[#q.forgotten + 1] = tenant_in(records[i]), ids[i]
    if flags == 2 then q.parted[#q.parted + 1] = ids[i] end
  end
  load_tenants(q, names)
  for i = 1, #ids do
    local t = q.tenants[names[i]]
    if not t or t[OWNS] >= DEAD_BIT then return false end
    local _, size, extra = unpacked(SIZE, records[i], #records[i] - SIZE_LENGTH + 1)
    local bytes = COUNTED + size + extra
    t[COUNT + COMPLETED], t[DONE_BYTES], t[CHANGED] = t[COUNT + COMPLETED] - 1, t[DONE_BYTES] - bytes, true
    s[Q_COUNT + COMPLETED], s[Q_DONE] = s[Q_COUNT + COMPLETED] - 1, s[Q_DONE] - bytes
    if t[OWNS] > 0 then
      if t[COUNT + COMPLETED] + t[COUNT + CANCELLED] == 0 then return false end
      straight.rank(q, t)
    end
  end
  return true
end

-- The first of a set by its number, or infinity.
local function first_in(key) return tonumber(call('ZRANGE', key, 0, 0, 'WITHSCORES')[2] or huge) end

-- The tenant that holds most, and what the one behind it holds.
local function largest(q, shares)
  local name, most, second = nil, 0, 0
  for each, share in pairs(shares) do
    if not name or share > most or share == most and less(each, name) then
      name, most, second = each, share, most
    elseif share > second then
      second = share
    end
  end
  if name and not q.tenants[name] then load_tenants(q, { name }) end
  return q.tenants[name], second
end

-- Those that hold much give `over` of their own oldest, as giver in lib/trim says. `first`: whose the oldest of all is.
local function give(q, over, first)
  local rows, shares = call('ZRANGE', P .. 'large-done:' .. q.name, 0, q.ended + over + 1, 'WITHSCORES'), {}
  for i = 1, #rows, 2 do shares[rows[i]] = -tonumber(rows[i + 1]) end
  for name, t in pairs(q.ranked or {}) do shares[name] = straight.share(q, t) end
  q.own_gone = {}
  while over > 0 do
    local t, second = largest(q, shares)
    if not t or t[OWNS] ~= DONE_BIT or t[NAME] == first or straight.share(q, t) <= 1 / LEAST then return false end
    local count, key, done = t[COUNT + COMPLETED] + t[COUNT + CANCELLED], P .. 'kept:' .. q.name .. ':' .. t[NAME], q.own_gone[t] or 0
    local many = min(over, max(floor(count - max(second, 1 / LEAST) * q.conf.count), 1))
    local ids = call('LRANGE', key, done, done + many - 1)
    if #ids < many then return false end
    local limit = first_in(P .. 'done:' .. q.name .. ':' .. t[NAME])
    if not forget_them(q, ids, call('HMGET', P .. 'records', unpack(ids)), limit) then return false end
    over, shares[t[NAME]], q.own_gone[t] = over - many, straight.share(q, t), done + many
  end
  return true
end

-- Make room for what ended in a queue. False if somebody has to be asked who gives, or something is past its time.
function straight.make_room(q)
  local s = q.s
  local over = s[Q_COUNT + COMPLETED] + s[Q_COUNT + CANCELLED] - q.conf.count
  if over > q.ended or s[Q_DONE] > q.conf.bytes or s[Q_COUNT + DEAD] > 0 and s[Q_DEAD] > q.conf.dead then return false end
  local large = s[Q_LARGE] > 0
  local ids = call('LRANGE', P .. 'kept:' .. q.name, 0, large and 0 or max(over, 1) - 1)
  local records = #ids > 0 and call('HMGET', P .. 'records', unpack(ids)) or ids
  local till = records[1] and kept_until(records[1])
  if ids[1] and not till then return false end -- it stands for nothing, and goes
  if over <= 0 then return true end
  local limit = first_in(P .. 'done:' .. q.name)
  if large then
    if limit < (till or huge) then return false end
    return give(q, over, till and tenant_in(records[1]))
  end
  q.gone = over
  return #ids == over and forget_them(q, ids, records, limit)
end

-- Whether the keys that were not read have their types.
function straight.fits(q)
  if q.ranked and not q.own_gone and not straight.has_type('zset', P .. 'large-done:' .. q.name) then return false end
  for t in pairs(q.own or {}) do
    if not (q.own_gone and q.own_gone[t]) and not straight.has_type('list', P .. 'kept:' .. q.name .. ':' .. t[NAME]) then return false end
  end
  return true
end

function straight.write(q)
  local key = P .. 'kept:' .. q.name
  if q.gone then call('LPOP', key, q.gone) end
  if q.kept then call('RPUSH', key, unpack(q.kept)) end
  for t, many in pairs(q.own_gone or {}) do call('LPOP', key .. ':' .. t[NAME], many) end
  for t, list in pairs(q.own or {}) do call('RPUSH', key .. ':' .. t[NAME], unpack(list)) end
  for name, t in pairs(q.ranked or {}) do call('ZADD', P .. 'large-done:' .. q.name, -straight.share(q, t), name) end
  if not q.forgotten then return end
  call('HDEL', P .. 'tasks', unpack(q.forgotten))
  call('HDEL', P .. 'records', unpack(q.forgotten))
  if q.parted[1] then call('HDEL', P .. 'results', unpack(q.parted)) end
end
