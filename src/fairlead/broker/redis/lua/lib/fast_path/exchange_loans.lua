-- Fast path (see enqueue.lua): what `exchange_straight` lends, and the room that it makes for what ended.

-- @part room
-- Room for completed tasks, on the straight way of exchange (fast_path/exchange.exchange_straight).
-- What retention.shelves, retention_trim.trim and retention_trim.forget do where nothing is past its time: the oldest of
-- all goes, or those that hold much give their own oldest. Nothing is written before `straight.write`; whatever is unusual
-- is left to the engine.
-- @include fast_path/exchange_tenants.visits fast_path/exchange_forget.forget
-- Places in the record of a queue, see STATE in queue.queue; counts stand at Q_COUNT + state.
-- @const Q_CLOCK=1 Q_WEIGHT=2 Q_COUNT=2 Q_DONE=15 Q_DEAD=16 Q_UNTIL=17 Q_LARGE=18 Q_LOOK=20 Q_EMPTIED=21 Q_TAIL=22

local NONE = {} -- a list that nobody writes to

function straight.has_type(kind, key)
  local found = call('TYPE', key).ok
  return found == kind or found == 'none'
end

-- What part of the room for completed tasks a tenant holds, as shelves.share.
function straight.share(queue, tenant)
  return max((tenant[COUNT + COMPLETED] + tenant[COUNT + CANCELLED]) / max(queue.conf.count, 1),
    tenant[DONE_BYTES] / max(queue.conf.bytes, 1))
end

function straight.rank(queue, tenant)
  if not queue.ranked then queue.ranked = {} end
  queue.ranked[tenant[NAME]] = tenant
end

-- Whether a tenant that holds so much has an order of its own.
local function is_large(queue, count, bytes) return count >= queue.conf.count / OWN or bytes >= queue.conf.bytes / OWN end

-- Keep tasks `first` to `last` of a tenant, which completed: with those of all tenants, or in the order of a tenant that holds
-- much. It held so many completed ones and so many bytes before.
function straight.keep(queue, tenant, ids, first, last, count, bytes)
  local list = queue.kept
  if is_large(queue, tenant[COUNT + COMPLETED] + tenant[COUNT + CANCELLED], tenant[DONE_BYTES]) then
    -- From now on it has an order of its own, or only some of these go there.
    if tenant[OWNS] == 0 or first < last and not is_large(queue, count + tenant[COUNT + CANCELLED], bytes) then queue.homeless = true end
    queue.own = queue.own or {}
    list = queue.own[tenant] or {}
    queue.own[tenant] = list
    straight.rank(queue, tenant)
  end
  local before = #list + 1 - first
  for i = first, last do list[before + i] = ids[i] end
end

-- Make room for what ended in a queue. False if somebody has to be asked who gives, or something is past its time.
function straight.make_room(queue)
  local numbers = queue.numbers
  local over = numbers[Q_COUNT + COMPLETED] + numbers[Q_COUNT + CANCELLED] - queue.conf.count
  if over > queue.ended or numbers[Q_DONE] > queue.conf.bytes or numbers[Q_COUNT + DEAD] > 0 and numbers[Q_DEAD] > queue.conf.dead then
    return false
  end
  local large = numbers[Q_LARGE] > 0
  local ids = call('LRANGE', prefix .. 'kept:' .. queue.name, 0, large and 0 or max(over, 1) - 1)
  local records = #ids > 0 and call('HMGET', prefix .. 'records', unpack(ids)) or ids
  local till = records[1] and straight.kept_until(records[1])
  if ids[1] and not till then return false end -- it stands for nothing, and goes
  if over <= 0 then return true end
  local limit = straight.first_in(prefix .. 'done:' .. queue.name)
  if large then return limit >= (till or huge) and straight.ask_all(queue, over, ids, records, limit) end
  queue.gone = over
  return #ids == over and straight.forget(queue, ids, records, limit)
end

-- Whether the keys that were not read have their types.
function straight.fits(queue)
  if queue.ranked and not queue.own_gone and not straight.has_type('zset', prefix .. 'large-done:' .. queue.name) then return false end
  for tenant in pairs(queue.own or {}) do
    if not (queue.own_gone and queue.own_gone[tenant])
      and not straight.has_type('list', prefix .. 'kept:' .. queue.name .. ':' .. tenant[NAME]) then return false end
  end
  return true
end

-- Add members to a sorted set. Many of their numbers are the same, and to print one takes 2,500 machine instructions.
local function add_numbers(key, numbers)
  local args, size, texts = {}, 0, {}
  for name, number in pairs(numbers) do
    local text = texts[number] or format('%.17g', number)
    texts[number], args[size + 1], args[size + 2] = text, text, name
    size = size + 2
  end
  if size > 0 then call('ZADD', key, unpack(args)) end
end

function straight.write(queue)
  local key = prefix .. 'kept:' .. queue.name
  if queue.gone then call('LPOP', key, queue.gone) end
  if queue.kept[1] then call('RPUSH', key, unpack(queue.kept)) end
  for tenant, many in pairs(queue.own_gone or {}) do call('LPOP', key .. ':' .. tenant[NAME], many) end
  for tenant, list in pairs(queue.own or {}) do call('RPUSH', key .. ':' .. tenant[NAME], unpack(list)) end
  if queue.ranked then
    local shares = {}
    for name, tenant in pairs(queue.ranked) do shares[name] = -straight.share(queue, tenant) end
    add_numbers(prefix .. 'large-done:' .. queue.name, shares)
  end
  if queue.heads then add_numbers(prefix .. 'heads-done:' .. queue.name, queue.heads) end
  if not queue.forgotten then return end
  call('HDEL', prefix .. 'tasks', unpack(queue.forgotten))
  call('HDEL', prefix .. 'records', unpack(queue.forgotten))
  if queue.parted[1] then call('HDEL', prefix .. 'results', unpack(queue.parted)) end
end

-- @part read_ready
-- Plain tasks are chosen and lent, on the straight way of exchange (fast_path/exchange.exchange_straight).
-- What fast_path/fetch.lend_straight and lend do for them: each task is that of the tenant with the lowest tag. What
-- is read is taken from the lines at once, since reading it first would be a call more for each tenant; whoever gives
-- up puts it back. Nothing else is written. Reads ARGV as exchange.
-- @include fast_path/exchange_once.lend_once
local NEVER_BEGUN, NONE = ('\0'):rep(24), {} -- NONE: a list that nobody writes to

-- The tenants that may be served, lowest first; more of them than there are tasks to lend are of no use.
function straight.read_ready(queue, wanted)
  local numbers = queue.numbers
  local most = min(wanted, numbers[Q_COUNT + QUEUED])
  queue.ready = NONE
  if numbers[Q_WEIGHT] <= 0 or most <= 0 then return end
  local found = call('ZRANGE', prefix .. 'ready:' .. queue.name, 0, most - 1)
  local size = #found
  if found[size] == SENTINEL then found[size], size = nil, size - 1 end
  queue.ready = found
end

-- Note what was taken, to be put back: keys (of each, or one of all), ids and how many, or false for all that there are by then.
local function note(exchange, keys, taken, count)
  local popped = exchange.popped or {}
  local size = #popped
  exchange.popped, popped[size + 1], popped[size + 2], popped[size + 3] = popped, keys, taken, count
end

-- Put back what was taken from lines, all of it.
function straight.put_back(exchange)
  local popped = exchange.popped or NONE
  exchange.popped = false
  for i = #popped - 2, 1, -3 do
    local keys, taken = popped[i], popped[i + 1]
    for place = popped[i + 2] or #taken, 1, -1 do call('LPUSH', type(keys) == 'table' and keys[place] or keys, taken[place]) end
  end
end

-- Take up to `most` more from a line; nil if there are none, or it is no line.
local function take(exchange, key, most)
  local found = redis.pcall('LPOP', key, most)
  if not found or found.err then return nil end
  note(exchange, key, found, #found)
  return found
end

-- Read the next of a line; between which entries these stand.
local function read_on(exchange, key, most, entries, messages)
  local found, last = take(exchange, key, most), #entries
  if not found then return nil end
  local more = call('HMGET', prefix .. 'tasks', unpack(found))
  for i = 1, #found do entries[last + i], messages[last + i] = found[i], more[i] end
  return last, last + #found
end

-- Take the first of each line, and read their messages; nil if there is none in one of them.
function straight.take_firsts(exchange, keys)
  local entries = {}
  note(exchange, keys, entries, false) -- a line that is none raises an error
  for i = 1, #keys do
    local id = call('LPOP', keys[i])
    if not id then return nil end
    entries[i] = id
  end
  exchange.popped[#exchange.popped] = #keys -- more may be read behind these
  return entries, call('HMGET', prefix .. 'tasks', unpack(entries))
end

-- Read the beginnings of lines, if these were not taken: entries, messages, and between which of them each line goes on. nil if one
-- cannot be read.
local function read_lines(exchange, keys, wanted, entries, messages)
  local size, reads, ends, last = #keys, {}, {}, 0
  local each = math.ceil(wanted / size)
  if each == 1 and not entries then
    entries, messages = straight.take_firsts(exchange, keys)
    if not entries then return nil end
  end
  if entries then
    for i = 1, size do reads[i], ends[i] = i - 1, i end
    return entries, messages, reads, ends
  end
  entries = {}
  for i = 1, size do
    local found = take(exchange, keys[i], each)
    if not found then return nil end
    reads[i] = last
    if size == 1 then entries = { unpack(found) } else
      for k = 1, #found do entries[last + k] = found[k] end
    end
    last = last + #found
    ends[i] = last
  end
  return entries, call('HMGET', prefix .. 'tasks', unpack(entries)), reads, ends
end

-- Lend tasks of a queue in the order of tags, as lend_plainly and lend_each do. False if one of them is not plain.
local function lend_from(exchange, queue, wanted)
  local most, keys, entries, messages, done = min(wanted - exchange.lent, queue.numbers[Q_COUNT + QUEUED]), nil, nil, nil, nil
  if #queue.ready == most then
    done, keys, entries, messages = straight.lend_once(exchange, queue)
    if done ~= nil then return done end
  end
  keys = keys or straight.open_lines(queue)
  if not keys then return false end
  local queued, tags, weights, cuts, begun_now, longest
    = straight.queued, straight.tags, straight.weights, straight.cuts, straight.begun, straight.longest
  local total, written_size, rows_size, start, begin, loans, values, written, rows, row_head, row_tenant
    = exchange.lent, exchange.written_size, exchange.rows_size, exchange.start, exchange.begin, exchange.loans, exchange.values,
    exchange.written, exchange.rows, exchange.row_head, exchange.row_tenant
  local reads, ends
  entries, messages, reads, ends = read_lines(exchange, keys, most, entries, messages)
  if not entries then return false end
  local numbers, counted, size, first, ready = queue.numbers, straight.changing(queue), #keys, total, queue.ready
  local clock, weight, waits, pace = numbers[Q_CLOCK], numbers[Q_WEIGHT], counted.waits, STRIDE * UNIT / numbers[Q_WEIGHT]
  local loan = '\4' .. sub(NEVER_BEGUN, 1, 11) .. pack('<d', meta.token)
  local running, held, rest_held = loan .. pack('<d', now) .. NEVER_BEGUN .. sub(NEVER_BEGUN, 1, 8) .. begin,
    loan .. sub(NEVER_BEGUN, 1, 8), NEVER_BEGUN .. begin
  local began, behind_queue = 'started\0314\031' .. queue.name .. SEP .. exchange.token .. '\0311\031' .. ARGV[2], 19 + #queue.name
  -- Those that were served, in their order; what the last one was like.
  local again, front, back, at, owner = {}, 1, 0, 1, nil
  local last, long, opening, before, record, step, since, rest, cost, same_since, begun, weighs, sizes
    = nil, nil, nil, nil, nil, nil, nil, nil, nil, 0, nil, nil, nil
  while total < wanted do
    if not owner then
      local next = again[front]
      if at > size then
        owner, front = next, front + 1
        if not owner then break end
      else
        owner = at
        if next then
          local new_tag, served_tag = tags[at], tags[next]
          if served_tag < new_tag or served_tag == new_tag and less(ready[next], ready[at]) then owner = next end
        end
        if owner == at then at = at + 1 else front = front + 1 end
      end
    end
    local entry_at = reads[owner]
    if entry_at == ends[owner] then
      entry_at, ends[owner] = read_on(exchange, keys[owner], wanted - total, entries, messages)
      if not entry_at then return false end
    end
    entry_at = entry_at + 1
    local id, value, tag = entries[entry_at], messages[entry_at], tags[owner]
    if not value then return false end
    if owner == last and #value == #before and total ~= start then
      opening = opening or sub(before, 1, long)
      if sub(value, 1, long) ~= opening then last = nil end
    else
      last = nil
    end
    if not last then
      local accepted, _, length = unpacked('<dIH', value)
      local body, trace, behind = unpacked('<II', value, 15 + length)
      local its_rest = sub(value, behind_queue + #ready[owner], 14 + length) -- what stands behind queue, tenant and level
      if its_rest ~= rest then
        local kind = kind_of(its_rest)
        if kind.limited then return false end
        rest, cost = its_rest, kind.cost
      end
      if accepted ~= since then
        if same_since > 0 then waits[since] = (waits[since] or 0) + same_since end
        since, same_since, begun = accepted, 0, held .. sub(value, 1, 8) .. rest_held
      end
      if body + trace ~= weighs then weighs, sizes = body + trace, pack('<III', 0, body + trace, 0) end
      last, before, long, opening, step = owner, value, behind - 1, nil, cost * STRIDE * UNIT / weights[owner]
      record = (total < start and running or begun) .. sub(value, 13, 14 + length) .. sizes
    end
    total = total + 1
    loans[total], values[total], written[written_size + 1], written[written_size + 2] = id, value, id, record
    written_size = written_size + 2
    local to = clock + pace
    if to < tag then to = tag elseif to > tag + STRIDE then to = tag + STRIDE end
    if to > clock then clock = to end
    tag = tag + step
    local left = queued[owner] - 1
    tags[owner], queued[owner], reads[owner], cuts[owner] = tag, left, entry_at, cuts[owner] + 1
    if total <= start then
      if row_head ~= began then
        rows_size = rows_size + 1
        rows[rows_size], row_head, row_tenant = row_head and '\30' .. began or began, began, nil
      end
      rows_size = rows_size + 1
      local name = ready[owner]
      if name == row_tenant then rows[rows_size] = SEP .. id
      else rows[rows_size], row_tenant = '\31\28' .. name .. SEP .. id, name end
      begun_now[owner], same_since = begun_now[owner] + 1, same_since + 1
      if now - since > longest[owner] then longest[owner] = now - since end
    end
    if left == 0 then
      weight, owner = weight - weights[owner], nil
      pace = STRIDE * UNIT / weight
    elseif at <= size or front <= back then
      local place = back + 1
      back = place
      while place > front do
        local other = again[place - 1]
        local its_tag = tags[other]
        if its_tag < tag or its_tag == tag and less(ready[other], ready[owner]) then break end
        again[place] = other
        place = place - 1
      end
      again[place], owner = owner, nil
    end
  end
  if same_since > 0 then waits[since] = (waits[since] or 0) + same_since end
  for i = 1, size do -- what was taken and is not lent goes back
    if reads[i] < ends[i] then queue.spare = queue.spare or {} queue.spare[keys[i]] = { unpack(entries, reads[i] + 1, ends[i]) } end
  end
  straight.close_lines(queue)
  exchange.lent, exchange.written_size, exchange.rows_size, exchange.row_head, exchange.row_tenant
    = total, written_size, rows_size, row_head, row_tenant
  local lent, started = total - first, max(min(total, start) - first, 0)
  numbers[Q_CLOCK], numbers[Q_WEIGHT], counted[STARTED] = clock, weight, counted[STARTED] + started
  numbers[Q_COUNT + QUEUED], numbers[Q_COUNT + RUNNING] = numbers[Q_COUNT + QUEUED] - lent, numbers[Q_COUNT + RUNNING] + lent
  return true
end

-- Lend up to `wanted` tasks of the queues, in their order. False if that is for the engine.
function straight.fetch(exchange, wanted)
  for i = 1, exchange.many do
    local queue = exchange.queues[exchange.names[i]]
    if queue and queue.conf.paused == 0 and exchange.lent < wanted then
      if not queue.ready then
        straight.read_ready(queue, wanted - exchange.lent)
        straight.open_visits(queue, NONE, queue.ready)
      end
      if queue.ready[1] then
        if exchange.lent == 0 then
          meta.token = next_number(meta.token)
          exchange.token = format('%.0f', meta.token)
        end
        if not lend_from(exchange, queue, wanted) then return false end
      end
      if exchange.saved and call('ZRANGEBYSCORE', prefix .. 'saved:' .. queue.name, '-inf', queue.numbers[Q_CLOCK], 'LIMIT', 0, 1)[1] then
        return false
      end
    end
  end
  return true
end

-- Give the tenants that were served their new places, and their lines what is not lent after all.
function straight.write_lines(queue)
  local key = prefix .. 'ready:' .. queue.name
  if queue.adds[1] then call('ZADD', key, unpack(queue.adds)) end
  if queue.drops[1] then call('ZREM', key, unpack(queue.drops)) end
  for line, list in pairs(queue.spare or NONE) do
    for place = #list, 1, -1 do call('LPUSH', line, list[place]) end
  end
end
