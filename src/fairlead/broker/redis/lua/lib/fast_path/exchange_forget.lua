-- Fast path (see enqueue.lua): who gives up what is kept, to make room for what ended on the straight way of exchange.

-- @part forget
-- Finished tasks are forgotten, and whose these are, where nothing is past its time.
-- What retention_trim.trim does for such tasks: tenants that hold much give their own oldest, and where none does, the
-- oldest of all goes, of the order of all tenants or of those that have an order of their own. How many each gives is
-- decided before any of their orders is read: to ask for one task at a time is some 25 commands for each. Nothing is
-- written here, see straight.write in exchange_loans; whatever is unusual is left to the engine.
-- @include fast_path/exchange_tenants.visits
local NONE = {} -- a list that nobody writes to

-- Until when a completed task is kept, by its record; nil if it is none, or there is more to forgetting it than that.
function straight.kept_until(record)
  if not record then return nil end
  local state, flags, _, _, _, _, _, _, _, _, _, _, expires = unpacked(FATE, record)
  if state ~= COMPLETED or flags ~= 0 and flags ~= 2 then return nil end
  return expires, flags
end

local NEITHER = ('\0'):rep(4)

-- Forget these tasks of a queue, none of which is to be kept longer than `limit`. False if there is more to one of them.
function straight.forget(queue, ids, records, limit)
  local numbers, visits, goes, frees, last, name, visit, fate, flags, tail, bytes, sum, fate_to
    = queue.numbers, queue.visits, straight.goes, straight.frees, nil, nil, nil, nil, nil, nil, nil, 0, 0
  local names, sizes, others, behind_queue, parted, forgotten = {}, {}, 0, 4 + #queue.name, queue.parted or {}, queue.forgotten
  for i = 1, #ids do
    local record = records[i]
    if record ~= last then
      if not record then return false end
      if not fate or find(record, fate, 1, true) ~= 1 then -- up to the head, if there is neither a unique key nor a reason
        local till
        till, flags = straight.kept_until(record)
        if not till or till > limit then return false end
        fate_to = FATE_END + 6 + record:byte(FATE_END + 2)
        fate = sub(record, fate_to - 3, fate_to) == NEITHER and sub(record, 1, fate_to)
      end
      if not tail or not find(record, tail, -SIZE_LENGTH, true) then
        tail = sub(record, -SIZE_LENGTH)
        local life, size, extra = unpacked(SIZE, tail)
        if life > 0 then return false end
        bytes = COUNTED + size + extra
      end
      last = record
      if fate then
        local at = fate_to + behind_queue
        name = sub(record, at, find(record, SEP, at, true) - 1)
      else
        name = tenant_in(record)
      end
      visit = visits[name]
    end
    sum = sum + bytes
    if visit then
      goes[visit], frees[visit] = goes[visit] + 1, frees[visit] + bytes
    else
      others = others + 1
      names[others], sizes[others] = name, bytes
    end
    if flags == 2 then parted[#parted + 1] = ids[i] end
  end
  for i = 1, forgotten and #ids or 0 do forgotten[#forgotten + 1] = ids[i] end
  queue.forgotten, queue.parted = forgotten or ids, parted
  if others > 0 then straight.open_visits(queue, names, NONE) end
  local cache = queue.tenants
  for i = 1, others do
    local size = sizes[i]
    visit = visits[names[i]]
    if visit then
      goes[visit], frees[visit] = goes[visit] + 1, frees[visit] + size
    else
      local tenant = cache[names[i]]
      if not tenant or tenant[OWNS] >= DEAD_BIT then return false end
      tenant[COUNT + COMPLETED], tenant[DONE_BYTES], tenant[CHANGED] = tenant[COUNT + COMPLETED] - 1, tenant[DONE_BYTES] - size, true
      if tenant[OWNS] > 0 then
        if tenant[COUNT + COMPLETED] + tenant[COUNT + CANCELLED] == 0 then return false end
        straight.rank(queue, tenant)
      end
    end
  end
  numbers[Q_COUNT + COMPLETED], numbers[Q_DONE] = numbers[Q_COUNT + COMPLETED] - #ids, numbers[Q_DONE] - sum
  return true
end

-- The first of a set by its number, or infinity.
function straight.first_in(key) return tonumber(call('ZRANGE', key, 0, 0, 'WITHSCORES')[2] or huge) end

-- Until when what is in orders of their own may go before what is in the sets beside them, by tenant: infinity, as a rule.
local function first_of_sets(queue, names)
  local keys, firsts_of = {}, {}
  for i = 1, #names do keys[i], firsts_of[names[i]] = prefix .. 'done:' .. queue.name .. ':' .. names[i], huge end
  if call('EXISTS', unpack(keys)) == 0 then return firsts_of end
  for i = 1, #names do firsts_of[names[i]] = straight.first_in(keys[i]) end
  return firsts_of
end

-- Take what tenants give of their own oldest, `gives` by name. False if it is not all there, or there is more to it.
local function take_given(queue, gives)
  local names, ids, size, limits_of = {}, {}, 0, nil
  for name in pairs(gives) do names[#names + 1] = name end
  limits_of = first_of_sets(queue, names)
  for i = 1, #names do
    local name, tenant = names[i], queue.tenants[names[i]]
    local many, done = gives[name], queue.own_gone[tenant] or 0
    local found = call('LRANGE', prefix .. 'kept:' .. queue.name .. ':' .. name, done, done + many - 1)
    if #found < many then return false end
    for k = 1, many do ids[size + k] = found[k] end
    size, queue.own_gone[tenant] = size + many, done + many
  end
  local records, from = call('HMGET', prefix .. 'records', unpack(ids)), 1
  for i = 1, #names do
    local many, limit = gives[names[i]], limits_of[names[i]]
    for k = from, limit < huge and from + many - 1 or 0 do
      local till = straight.kept_until(records[k])
      if not till or till > limit then return false end
    end
    from = from + many
  end
  return straight.forget(queue, ids, records, huge)
end

-- The name of whoever holds most of the room, and what the one behind it holds.
local function largest(shares)
  local name, most, second = nil, 0, 0
  for each, share in pairs(shares) do
    if not name or share > most or share == most and less(each, name) then
      name, most, second = each, share, most
    elseif share > second then
      second = share
    end
  end
  return name, second
end

-- Those that hold much give up to `over` of their own oldest, as giver in retention_trim.trim says. `first`: whose the first in the
-- order of all is. Returns how many are left to be given by others; false if that is for the engine.
local function ask_largest(queue, over, first)
  local conf, shares, gives, looks = queue.conf, {}, {}, 0
  local rows = call('ZRANGE', prefix .. 'large-done:' .. queue.name, 0, queue.ended + over + 1, 'WITHSCORES')
  for i = 1, #rows, 2 do shares[rows[i]] = -tonumber(rows[i + 1]) end
  for name, tenant in pairs(queue.ranked or NONE) do shares[name] = straight.share(queue, tenant) end
  -- Those that hold less give nothing, whoever else does.
  for name, share in pairs(shares) do if share <= 1 / LEAST then shares[name] = nil end end
  while over > 0 and next(shares) do
    local name, second = largest(shares)
    if not queue.tenants[name] then load_tenants(queue, { name }) end
    local tenant, given = queue.tenants[name], gives[name] or 0
    if not tenant or tenant[OWNS] ~= DONE_BIT then return false end
    local held, weighs = tenant[COUNT + COMPLETED] + tenant[COUNT + CANCELLED] - given, tenant[DONE_BYTES] / max(conf.bytes, 1)
    looks = looks + 1
    -- What stands first in the order of all may be its own, and goes before; what is noted of its share may be of another room.
    if name == first or looks == LOOKS or given == 0 and straight.share(queue, tenant) <= 1 / LEAST then return false end
    local many = min(over, max(floor(held - max(second, 1 / LEAST) * conf.count), 1))
    gives[name], over = given + many, over - many
    local share = (held - many) / max(conf.count, 1)
    if share < weighs then -- what its bytes will be is known once they are taken
      if not take_given(queue, gives) then return false end
      share, gives = straight.share(queue, tenant), {}
    end
    shares[name] = share > 1 / LEAST and share or nil
  end
  if next(gives) and not take_given(queue, gives) then return false end
  return over
end

-- Until when what a record is about is kept, see straight.kept_until; those that ended in one call begin the same.
local function till_of(record, tills)
  if not record then return nil end
  local begins = sub(record, 1, FATE_END)
  local till = tills[begins]
  if till == nil then
    till = straight.kept_until(record) or false
    tills[begins] = till
  end
  return till
end

-- Read `many` more of an order that has been read up to there.
local function read_more(order, many)
  local found = call('LRANGE', order.key, order.read, order.read + many - 1)
  order.read = order.read + #found
  local records = #found > 0 and call('HMGET', prefix .. 'records', unpack(found)) or NONE
  for i = 1, #found do order.ids[order.size + i], order.records[order.size + i] = found[i], records[i] end
  order.size = order.size + #found
end

-- The orders of tenants of which something goes, as it seems; all of their next `many` are read at once.
local function read_orders(queue, names, from, to, many)
  local orders, all, size, some = {}, {}, 0, { unpack(names, from, to) }
  local limits_of = first_of_sets(queue, some)
  for i = 1, #some do
    local key, done = prefix .. 'kept:' .. queue.name .. ':' .. some[i], queue.own_gone[queue.tenants[some[i]]] or 0
    local found = call('LRANGE', key, done, done + many - 1)
    orders[some[i]] = { key = key, ids = found, records = {}, size = #found, read = done + #found, at = 1, limit = limits_of[some[i]] }
    for k = 1, #found do all[size + k] = found[k] end
    size = size + #found
  end
  if size == 0 then return orders end
  local records, at = call('HMGET', prefix .. 'records', unpack(all)), 0
  for i = 1, #some do
    local order = orders[some[i]]
    for k = 1, order.size do order.records[k] = records[at + k] end
    at = at + order.size
  end
  return orders
end

-- Whether none of those that have an order of their own holds so much that it gives before others.
local function hold_little(queue, names)
  load_tenants(queue, names)
  for i = 1, #names do
    local tenant = queue.tenants[names[i]]
    if not tenant or tenant[OWNS] ~= DONE_BIT or straight.share(queue, tenant) > 1 / LEAST then return false end
  end
  return true
end

-- The oldest of all go, `over` of them, as oldest in retention_trim.trim says, one after the other. `all` is the order of all, of
-- which the first has been read. False if that is for the engine.
local function ask_oldest(queue, over, all)
  local rows = call('ZRANGE', prefix .. 'heads-done:' .. queue.name, 0, LOOKS - 1, 'WITHSCORES')
  local size, names, heads, tills, ids, records, taken = #rows / 2, {}, {}, {}, {}, {}, 0
  if size == 0 or size == LOOKS then return false end
  for i = 1, size do names[i], heads[i] = rows[2 * i - 1], tonumber(rows[2 * i]) end
  if not hold_little(queue, names) then return false end
  local newest, front, back, till, orders, moved = now + queue.conf.keep, 1, size, till_of(all.records[1], tills), nil, {}
  while taken < over do
    local bound = heads[front]
    if bound >= newest then return false end -- what ended in this call
    local is_own = not till or till > bound
    local name, order, limit = names[front], all, bound
    if is_own then
      limit = min(till or huge, heads[front + 1] or huge)
      if not orders then
        local left = over - taken
        orders = read_orders(queue, names, front, min(back, front + left - 1), math.ceil(left / size) + 1)
      end
      if not orders[name] then orders[name] = read_orders(queue, { name }, 1, 1, over - taken)[name] end
      order = orders[name]
    end
    local at, next = order.at, nil
    while taken < over do
      if at > order.size then read_more(order, over - taken) end
      local its_till = till_of(order.records[at], tills)
      -- It stands for nothing, and goes; or nothing is left there, and who has none is no longer among those that have an order.
      if not its_till and (is_own or order.ids[at] or order.limit < huge) then return false end
      if not its_till or its_till > limit then
        next = its_till
        break
      end
      if its_till > order.limit then return false end
      taken = taken + 1
      ids[taken], records[taken], at = order.ids[at], order.records[at], at + 1
    end
    if next and order.limit < next then return false end
    local took = at - order.at
    order.at = at
    if not is_own then
      queue.gone, till = (queue.gone or 0) + took, next
    elseif next then
      next = min(next, newest)
      if took == 0 and next <= bound then return false end
      -- By now it stands elsewhere among the others, behind most of them.
      moved[name], front, back = next, front + 1, back + 1
      local place = back
      while place > front do
        local other = heads[place - 1]
        if other < next or other == next and less(names[place - 1], name) then break end
        heads[place], names[place], place = other, names[place - 1], place - 1
      end
      heads[place], names[place] = next, name
    end
  end
  if not straight.forget(queue, ids, records, huge) then return false end
  for name, order in pairs(orders or NONE) do
    local tenant, took = queue.tenants[name], order.at - 1
    if took > 0 then queue.own_gone[tenant] = (queue.own_gone[tenant] or 0) + took end
  end
  queue.heads = moved
  return true
end

-- `over` tasks of a queue go in which tenants have orders of their own; the first in the order of all is read. False if that is
-- for the engine.
function straight.ask_all(queue, over, ids, records, limit)
  queue.own_gone = {}
  over = ask_largest(queue, over, records[1] and tenant_in(records[1]))
  if not over or over == 0 then return over end
  return ask_oldest(queue, over, { key = prefix .. 'kept:' .. queue.name, ids = ids, records = records, size = #ids, read = #ids, at = 1,
    limit = limit })
end
