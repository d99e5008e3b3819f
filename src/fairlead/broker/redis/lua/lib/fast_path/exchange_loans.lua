-- Fast path (skip it on a first reading, see fast_path/enqueue.lua): what `exchange_straight` lends, and the room
-- that it makes for what ended.

-- @part room
-- Room for completed tasks, on the straight way of exchange (fast_path/exchange.exchange_straight).
-- What retention.shelves, retention_trim.trim and retention_trim.forget do where nothing is past its time: the oldest of all goes, or those that hold
-- much give their own oldest. Nothing is written before `straight.write`; whatever is unusual is left to the engine.
-- @include fast_path/exchange_tenants.light
-- Places in the record of a queue, see STATE in queue.queue; counts stand at Q_COUNT + state.
-- @const Q_CLOCK=1 Q_WEIGHT=2 Q_COUNT=2 Q_DONE=15 Q_DEAD=16 Q_UNTIL=17 Q_LARGE=18 Q_LOOK=20 Q_EMPTIED=21 Q_TAIL=22

local NONE = {} -- a list that nobody writes to

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

-- Whether a tenant that holds so much has an order of its own.
local function is_large(q, count, bytes) return count >= q.conf.count / OWN or bytes >= q.conf.bytes / OWN end

-- Keep tasks `first` to `last` of a tenant, which completed: with those of all tenants, or in the order of a tenant that holds
-- much. It held so many completed ones and so many bytes before.
function straight.keep(q, t, ids, first, last, count, bytes)
  local list = q.kept
  if is_large(q, t[COUNT + COMPLETED] + t[COUNT + CANCELLED], t[DONE_BYTES]) then
    -- From now on it has an order of its own, or only some of these go there.
    if t[OWNS] == 0 or first < last and not is_large(q, count + t[COUNT + CANCELLED], bytes) then q.homeless = true end
    q.own = q.own or {}
    list = q.own[t] or {}
    q.own[t] = list
    straight.rank(q, t)
  end
  local before = #list + 1 - first
  for i = first, last do list[before + i] = ids[i] end
end

-- Until when a completed task is kept, by its record; nil if it is none, or there is more to forgetting it than that.
local function kept_until(r)
  if not r then return nil end
  local state, flags, _, _, _, _, _, _, _, _, _, _, expires = unpacked(FATE, r)
  if state ~= COMPLETED or flags ~= 0 and flags ~= 2 then return nil end
  return expires, flags
end

local NEITHER = ('\0'):rep(4)

-- Forget these tasks of a queue, none of which is to be kept longer than `limit`. False if there is more to one of them.
local function forget_them(q, ids, records, limit)
  local names, sizes, s, last, name, fate, flags, tail, bytes, sum, fate_to = {}, {}, q.s, nil, nil, nil, nil, nil, nil, 0, 0
  local forgotten, parted = q.forgotten or {}, q.parted or {}
  local before = #forgotten
  for i = 1, #ids do
    local r = records[i]
    if r ~= last then
      if not r then return false end
      local ends = sub(r, -SIZE_LENGTH)
      if sub(r, 1, fate_to) ~= fate then -- up to the head, if there is neither a unique key nor a reason
        local till
        till, flags = kept_until(r)
        if not till or till > limit then return false end
        fate_to = FATE_END + 6 + r:byte(FATE_END + 2)
        fate = sub(r, fate_to - 3, fate_to) == NEITHER and sub(r, 1, fate_to)
      end
      if ends ~= tail then
        local life, size, extra = unpacked(SIZE, ends)
        if life > 0 then return false end
        tail, bytes = ends, COUNTED + size + extra
      end
      last = r
      if fate then
        local at = find(r, SEP, fate_to + 3, true) + 1
        name = sub(r, at, find(r, SEP, at, true) - 1)
      else
        name = tenant_in(r)
      end
    end
    names[i], sizes[i], forgotten[before + i] = name, bytes, ids[i]
    if flags == 2 then parted[#parted + 1] = ids[i] end
  end
  q.forgotten, q.parted = forgotten, parted
  straight.open_light(q, names, NONE)
  local cache, light = q.tenants, q.light
  for i = 1, #ids do
    local l, size = light[names[i]], sizes[i]
    sum = sum + size
    if l then
      l[L_COMPLETED], l[L_DONE] = l[L_COMPLETED] - 1, l[L_DONE] - size
    else
      local t = cache[names[i]]
      if not t or t[OWNS] >= DEAD_BIT then return false end
      t[COUNT + COMPLETED], t[DONE_BYTES], t[CHANGED] = t[COUNT + COMPLETED] - 1, t[DONE_BYTES] - size, true
      if t[OWNS] > 0 then
        if t[COUNT + COMPLETED] + t[COUNT + CANCELLED] == 0 then return false end
        straight.rank(q, t)
      end
    end
  end
  s[Q_COUNT + COMPLETED], s[Q_DONE] = s[Q_COUNT + COMPLETED] - #ids, s[Q_DONE] - sum
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

-- Those that hold much give `over` of their own oldest, as giver in retention_trim.trim says. `first`: whose the oldest of all is.
local function give(q, over, first)
  local rows, shares = call('ZRANGE', prefix .. 'large-done:' .. q.name, 0, q.ended + over + 1, 'WITHSCORES'), {}
  if #rows > 2 and over > SMALL then return false end -- retention_trim.trim asks them all at once
  for i = 1, #rows, 2 do shares[rows[i]] = -tonumber(rows[i + 1]) end
  for name, t in pairs(q.ranked or {}) do shares[name] = straight.share(q, t) end
  q.own_gone = {}
  while over > 0 do
    local t, second = largest(q, shares)
    if not t or t[OWNS] ~= DONE_BIT or t[NAME] == first or straight.share(q, t) <= 1 / LEAST then return false end
    local count, key, done = t[COUNT + COMPLETED] + t[COUNT + CANCELLED], prefix .. 'kept:' .. q.name .. ':' .. t[NAME], q.own_gone[t] or 0
    local many = min(over, max(floor(count - max(second, 1 / LEAST) * q.conf.count), 1))
    local ids = call('LRANGE', key, done, done + many - 1)
    if #ids < many then return false end
    local limit = first_in(prefix .. 'done:' .. q.name .. ':' .. t[NAME])
    if not forget_them(q, ids, call('HMGET', prefix .. 'records', unpack(ids)), limit) then return false end
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
  local ids = call('LRANGE', prefix .. 'kept:' .. q.name, 0, large and 0 or max(over, 1) - 1)
  local records = #ids > 0 and call('HMGET', prefix .. 'records', unpack(ids)) or ids
  local till = records[1] and kept_until(records[1])
  if ids[1] and not till then return false end -- it stands for nothing, and goes
  if over <= 0 then return true end
  local limit = first_in(prefix .. 'done:' .. q.name)
  if large then
    if limit < (till or huge) then return false end
    return give(q, over, till and tenant_in(records[1]))
  end
  q.gone = over
  return #ids == over and forget_them(q, ids, records, limit)
end

-- Whether the keys that were not read have their types.
function straight.fits(q)
  if q.ranked and not q.own_gone and not straight.has_type('zset', prefix .. 'large-done:' .. q.name) then return false end
  for t in pairs(q.own or {}) do
    if not (q.own_gone and q.own_gone[t]) and not straight.has_type('list', prefix .. 'kept:' .. q.name .. ':' .. t[NAME]) then return false end
  end
  return true
end

function straight.write(q)
  local key = prefix .. 'kept:' .. q.name
  if q.gone then call('LPOP', key, q.gone) end
  if q.kept[1] then call('RPUSH', key, unpack(q.kept)) end
  for t, many in pairs(q.own_gone or {}) do call('LPOP', key .. ':' .. t[NAME], many) end
  for t, list in pairs(q.own or {}) do call('RPUSH', key .. ':' .. t[NAME], unpack(list)) end
  for name, t in pairs(q.ranked or {}) do call('ZADD', prefix .. 'large-done:' .. q.name, -straight.share(q, t), name) end
  if not q.forgotten then return end
  call('HDEL', prefix .. 'tasks', unpack(q.forgotten))
  call('HDEL', prefix .. 'records', unpack(q.forgotten))
  if q.parted[1] then call('HDEL', prefix .. 'results', unpack(q.parted)) end
end

-- @part read_ready
-- Plain tasks are chosen and lent, on the straight way of exchange (fast_path/exchange.exchange_straight).
-- What fast_path/fetch.lend_straight and lend do for them: each task is that of the tenant with the lowest tag. What
-- is read is taken from the lines at once, since reading it first would be a call more for each tenant; whoever gives
-- up puts it back. Nothing else is written. Reads ARGV as exchange.
local NEVER_BEGUN, NONE = ('\0'):rep(24), {} -- NONE: a list that nobody writes to

-- The tenants that may be served, lowest first; more of them than there are tasks to lend are of no use.
function straight.read_ready(q, wanted)
  local s = q.s
  local most = min(wanted, s[Q_COUNT + QUEUED])
  q.ready = NONE
  if s[Q_WEIGHT] <= 0 or most <= 0 then return end
  local found = call('ZRANGE', prefix .. 'ready:' .. q.name, 0, most - 1)
  local size = #found
  if found[size] == SENTINEL then found[size], size = nil, size - 1 end
  q.ready = found
end

-- Note what was taken, to be put back: keys (of each, or one of all), ids and how many.
local function note(x, keys, taken, count)
  local popped = x.popped or {}
  local size = #popped
  x.popped, popped[size + 1], popped[size + 2], popped[size + 3] = popped, keys, taken, count
end

-- Put back what was taken from lines, all of it.
function straight.put_back(x)
  local popped = x.popped or NONE
  x.popped = false
  for i = #popped - 2, 1, -3 do
    local keys, taken = popped[i], popped[i + 1]
    for e = popped[i + 2], 1, -1 do call('LPUSH', type(keys) == 'table' and keys[e] or keys, taken[e]) end
  end
end

-- Take up to `most` more from a line; nil if there are none, or it is no line.
local function take(x, key, most)
  local found = redis.pcall('LPOP', key, most)
  if not found or found.err then return nil end
  note(x, key, found, #found)
  return found
end

-- Read the next of a line; between which entries these stand.
local function read_on(x, key, most, entries, messages)
  local found, last = take(x, key, most), #entries
  if not found then return nil end
  local more = call('HMGET', prefix .. 'tasks', unpack(found))
  for i = 1, #found do entries[last + i], messages[last + i] = found[i], more[i] end
  return last, last + #found
end

-- Read the beginnings of lines: entries, messages, and between which of them each line goes on. nil if one cannot be read.
local function read_lines(x, keys, wanted)
  local size, entries, reads, ends, last, try = #keys, {}, {}, {}, 0, redis.pcall
  local each = math.ceil(wanted / size)
  if each == 1 then
    for i = 1, size do
      local id = try('LPOP', keys[i])
      if type(id) ~= 'string' then break end
      last, entries[i], reads[i], ends[i] = i, id, i - 1, i
    end
    note(x, keys, entries, last)
    if last < size then return nil end
  else
    for i = 1, size do
      local found = take(x, keys[i], each)
      if not found then return nil end
      reads[i] = last
      if size == 1 then entries = { unpack(found) } else
        for e = 1, #found do entries[last + e] = found[e] end
      end
      last = last + #found
      ends[i] = last
    end
  end
  return entries, call('HMGET', prefix .. 'tasks', unpack(entries)), reads, ends
end

-- Lend tasks of a queue in the order of tags, as lend_plainly and lend_each do. False if one of them is not plain.
local function lend_from(x, q, wanted)
  local keys = straight.open_lines(q)
  if not keys then return false end
  local queued, tags, weights, cuts, begun_now, longest
    = straight.queued, straight.tags, straight.weights, straight.cuts, straight.begun, straight.longest
  local k, w, m, start, begin, loans, values, written, rows, row_head, row_tenant
    = x.k, x.w, x.m, x.start, x.begin, x.loans, x.values, x.written, x.rows, x.row_head, x.row_tenant
  local entries, messages, reads, ends = read_lines(x, keys, min(wanted - k, q.s[Q_COUNT + QUEUED]))
  if not entries then return false end
  local s, counted, size, first, ready = q.s, straight.changing(q), #keys, k, q.ready
  local clock, weight, waits, pace = s[Q_CLOCK], s[Q_WEIGHT], counted.waits, STRIDE * UNIT / s[Q_WEIGHT]
  local loan = '\4' .. sub(NEVER_BEGUN, 1, 11) .. pack('<d', meta.token)
  local running, held, rest_held = loan .. pack('<d', now) .. NEVER_BEGUN .. sub(NEVER_BEGUN, 1, 8) .. begin,
    loan .. sub(NEVER_BEGUN, 1, 8), NEVER_BEGUN .. begin
  local began, behind_queue = 'started\0314\031' .. q.name .. SEP .. x.token .. '\0311\031' .. ARGV[2], 19 + #q.name
  -- Those that were served, in their order; what the last one was like.
  local again, front, back, at, i = {}, 1, 0, 1, nil
  local last, long, opening, before, record, step, since, rest, cost, same_since, begun, weighs, sizes
    = nil, nil, nil, nil, nil, nil, nil, nil, nil, 0, nil, nil, nil
  while k < wanted do
    if not i then
      local next = again[front]
      if at > size then
        i, front = next, front + 1
        if not i then break end
      else
        i = at
        if next then
          local a, b = tags[at], tags[next]
          if b < a or b == a and less(ready[next], ready[at]) then i = next end
        end
        if i == at then at = at + 1 else front = front + 1 end
      end
    end
    local e = reads[i]
    if e == ends[i] then
      e, ends[i] = read_on(x, keys[i], wanted - k, entries, messages)
      if not e then return false end
    end
    e = e + 1
    local id, value, tag = entries[e], messages[e], tags[i]
    if not value then return false end
    if i == last and #value == #before and k ~= start then
      opening = opening or sub(before, 1, long)
      if sub(value, 1, long) ~= opening then last = nil end
    else
      last = nil
    end
    if not last then
      local accepted, _, length = unpacked('<dIH', value)
      local body, trace, behind = unpacked('<II', value, 15 + length)
      local its = sub(value, behind_queue + #ready[i], 14 + length) -- what stands behind queue, tenant and level
      if its ~= rest then
        local kind = kind_of(its)
        if kind.limited then return false end
        rest, cost = its, kind.cost
      end
      if accepted ~= since then
        if same_since > 0 then waits[since] = (waits[since] or 0) + same_since end
        since, same_since, begun = accepted, 0, held .. sub(value, 1, 8) .. rest_held
      end
      if body + trace ~= weighs then weighs, sizes = body + trace, pack('<III', 0, body + trace, 0) end
      last, before, long, opening, step = i, value, behind - 1, nil, cost * STRIDE * UNIT / weights[i]
      record = (k < start and running or begun) .. sub(value, 13, 14 + length) .. sizes
    end
    k = k + 1
    loans[k], values[k], written[w + 1], written[w + 2] = id, value, id, record
    w = w + 2
    local to = clock + pace
    if to < tag then to = tag elseif to > tag + STRIDE then to = tag + STRIDE end
    if to > clock then clock = to end
    tag = tag + step
    local left = queued[i] - 1
    tags[i], queued[i], reads[i], cuts[i] = tag, left, e, cuts[i] + 1
    if k <= start then
      if row_head ~= began then
        m = m + 1
        rows[m], row_head, row_tenant = row_head and '\30' .. began or began, began, nil
      end
      m = m + 1
      local name = ready[i]
      if name == row_tenant then rows[m] = SEP .. id
      else rows[m], row_tenant = '\31\28' .. name .. SEP .. id, name end
      begun_now[i], same_since = begun_now[i] + 1, same_since + 1
      if now - since > longest[i] then longest[i] = now - since end
    end
    if left == 0 then
      weight, i = weight - weights[i], nil
      pace = STRIDE * UNIT / weight
    elseif at <= size or front <= back then
      local place = back + 1
      back = place
      while place > front do
        local other = again[place - 1]
        local its_tag = tags[other]
        if its_tag < tag or its_tag == tag and less(ready[other], ready[i]) then break end
        again[place] = other
        place = place - 1
      end
      again[place], i = i, nil
    end
  end
  if same_since > 0 then waits[since] = (waits[since] or 0) + same_since end
  for e = 1, size do -- what was taken and is not lent goes back
    if reads[e] < ends[e] then q.spare = q.spare or {} q.spare[keys[e]] = { unpack(entries, reads[e] + 1, ends[e]) } end
  end
  straight.close_lines(q)
  x.k, x.w, x.m, x.row_head, x.row_tenant = k, w, m, row_head, row_tenant
  local lent, started = k - first, max(min(k, start) - first, 0)
  s[Q_CLOCK], s[Q_WEIGHT], counted[STARTED] = clock, weight, counted[STARTED] + started
  s[Q_COUNT + QUEUED], s[Q_COUNT + RUNNING] = s[Q_COUNT + QUEUED] - lent, s[Q_COUNT + RUNNING] + lent
  return true
end

-- Lend up to `wanted` tasks of the queues, in their order. False if that is for the engine.
function straight.fetch(x, wanted)
  for i = 1, x.many do
    local q = x.queues[x.names[i]]
    if q and q.conf.paused == 0 and x.k < wanted then
      if not q.ready then
        straight.read_ready(q, wanted - x.k)
        straight.open_light(q, NONE, q.ready)
      end
      if q.ready[1] then
        if x.k == 0 then
          meta.token = next_number(meta.token)
          x.token = format('%.0f', meta.token)
        end
        if not lend_from(x, q, wanted) then return false end
      end
      if x.saved and call('ZRANGEBYSCORE', prefix .. 'saved:' .. q.name, '-inf', q.s[Q_CLOCK], 'LIMIT', 0, 1)[1] then return false end
    end
  end
  return true
end

-- Give the tenants that were served their new places, and their lines what is not lent after all.
function straight.write_lines(q)
  local key = prefix .. 'ready:' .. q.name
  if q.adds[1] then call('ZADD', key, unpack(q.adds)) end
  if q.drops[1] then call('ZREM', key, unpack(q.drops)) end
  for line, list in pairs(q.spare or NONE) do
    for e = #list, 1, -1 do call('LPUSH', line, list[e]) end
  end
end
