-- Finished tasks are forgotten.

-- @part trim
-- Forget finished tasks beyond their queue's retention.
-- What is past its time goes, the oldest first. Beyond the caps of a queue a tenant that holds more than its part of
-- the room goes before others, the one that holds most first, and loses its own oldest; where nobody does, the oldest
-- of all goes.
local MOST_READ = 4194304 -- bytes of messages, in one go
-- LOOKS at orders in one go. LATER: seconds before a queue is looked at again of which something is over and cannot go.
-- @const LOOKS=200 LATER=1
-- An id in the list may belong to another task by now, or to none. What ended in one call begins the same.
local last_fate, last_till
local function kept_till(record)
  if not record then return -1 end
  local fate_bytes = sub(record, 1, FATE_END)
  if fate_bytes ~= last_fate then
    local fate = shelves.fate_of(record)
    last_fate, last_till = fate_bytes, fate.state == COMPLETED and not fate.aside and fate.expires or -1
  end
  return last_till
end

-- Whether an order has nothing but tasks that completed in the usual way, or nothing at all; and whose its first is.
local function first_of_all(shelf)
  local order = shelves.order(shelf)
  if #firsts(order.set, 1) > 0 then return false end
  local ids, rows = shelves.next_listed(order, 1)
  if not ids[1] then return true, nil end
  return kept_till(rows[1]) >= 0, rows[1] and tenant_in(rows[1])
end

local function records_of(members)
  local ids = {}
  for i, each in ipairs(members) do ids[i] = each[2] end
  return shelves.records_of(ids)
end

-- The first of an order, up to `want`: `forced` of them whatever their time, the rest only if it is over; none
-- that is to be kept beyond `limit`, or (if there is a tenant) that is another's. Returns ids, records, whether
-- the order has moved, and when the next one is over; false: nothing is left, nil: nobody looked. `ahead`: how many
-- of the list are read, if it need not be all.
local function take_from(order, want, forced, limit, tenant, ahead)
  if order.empty then return {}, {}, false, false end
  local ids, records, count = {}, {}, 0
  local window = max(ahead or want, order.window or 1) -- wider behind entries of the list that stand for nothing
  local listed, rows, stored = shelves.next_listed(order, window)
  local others, their, others_at = firsts(order.set, want), nil, 1
  local listed_at, last, last_till, next = 1, nil, nil, nil
  if not listed[1] and not others[1] then next, order.empty = false, true end
  while count < want and (listed[listed_at] or others[others_at]) do
    if listed[listed_at] and rows[listed_at] ~= last then last, last_till = rows[listed_at], kept_till(rows[listed_at]) end
    local till = listed[listed_at] and last_till
    local from_set = others[others_at] and (not till or others[others_at][1] < till)
    local record = rows[listed_at]
    if from_set then
      their = their or records_of(others)
      till, record = others[others_at][1], their[others_at]
    end
    -- Without a record it stands for nothing, and goes.
    if till > limit or (till > now and count >= forced) or (tenant and till >= 0 and record and tenant_in(record) ~= tenant[NAME]) then
      next = till
      break
    end
    if from_set then
      count = count + 1
      ids[count], records[count] = others[others_at][2], record
      drop(order.set, ids[count])
      others_at = others_at + 1
    else
      if till >= 0 then count = count + 1 ids[count], records[count] = listed[listed_at], record end
      listed_at = listed_at + 1
      local most = (till < 0 or others[others_at]) and 0 or till > now and min(forced, want) or want
      while count < most and rows[listed_at] == record do -- what holds for one holds for those that are the same
        count = count + 1
        ids[count], records[count], listed_at = listed[listed_at], record, listed_at + 1
      end
      if listed_at > window then break end -- what comes next in the list has not been read
    end
  end
  order.gone, order.new_gone = order.gone + min(listed_at - 1, stored), order.new_gone + max(listed_at - 1 - stored, 0)
  order.window = count == 0 and min(8 * window, 100) or nil
  return ids, records, listed_at + others_at > 2 and order.gone < 1000, next
end

-- Who gives first, and how many of its tasks before somebody else is asked.
local function giver(shelf)
  local first = shelf.queue[shelf.larges] > 0 and firsts(shelf.large, 2) or {}
  local tenant = first[1] and read_tenant(shelf.queue, first[1][2])
  if not tenant or shelves.share(shelf, tenant) <= 1 / LEAST then return nil end
  if not shelf.listed then return tenant, 1 end
  local least = max(first[2] and -first[2][1] or 0, 1 / LEAST) * shelf.queue.keep_count
  return tenant, max(floor(tenant[COUNT + COMPLETED] + tenant[COUNT + CANCELLED] - least), 1)
end

-- Of several that hold much, how many each gives until `over` are given: what `giver` would say one after the other, as long
-- as none of them has something in the order of all, and their tasks weigh more than their bytes. nil if that is not so.
local function givers(shelf, over)
  local queue, keep = shelf.queue, max(shelf.queue.keep_count, 1)
  local rows = shelf.listed and queue[shelf.larges] > 1 and firsts(shelf.large, LOOKS) or {}
  if #rows < 2 or #rows == LOOKS then return nil end
  local clean, first = first_of_all(shelf)
  if not clean then return nil end
  local names, tenants, counts, bytes, gives = {}, {}, {}, {}, {}
  for i = 1, #rows do names[i] = rows[i][2] end
  load_tenants(queue, names)
  for i = 1, #rows do
    local tenant = queue.tenants[names[i]]
    if not tenant or names[i] == first then return nil end
    tenants[i], counts[i], bytes[i], gives[i]
      = tenant, tenant[COUNT + COMPLETED] + tenant[COUNT + CANCELLED], tenant[DONE_BYTES] / max(queue.keep_bytes, 1), 0
    if counts[i] / keep ~= -rows[i][1] then return nil end -- its bytes weigh more, or the room was changed since
  end
  while over > 0 do
    local top, second = 1, 0
    for i = 2, #counts do
      local its_count = counts[i]
      if its_count > counts[top] or its_count == counts[top] and less(names[i], names[top]) then top, second = i, counts[top]
      elseif its_count > second then second = its_count end
    end
    if counts[top] / keep <= 1 / LEAST then break end
    local many = min(over, max(floor(counts[top] - max(second / keep, 1 / LEAST) * queue.keep_count), 1))
    counts[top], gives[top], over = counts[top] - many, gives[top] + many, over - many
    if counts[top] / keep < bytes[top] then break end -- by now its bytes weigh more
  end
  return tenants, gives
end

-- Take up to `most` of several that hold much, each of its own order; nil if it has to be asked for one at a time.
local function take_in_turn(shelf, most)
  local tenants, gives = givers(shelf, most)
  local ids, records, count = {}, {}, 0
  for i = 1, tenants and #tenants or 0 do
    if gives[i] > 0 then
      local its_ids, rows, _, next = take_from(shelves.order(shelf, tenants[i]), gives[i], gives[i], huge)
      for k = 1, #its_ids do ids[count + k], records[count + k] = its_ids[k], rows[k] end
      count = count + #its_ids
      if next == false then shelves.let_go(shelf, tenants[i]) end
    end
  end
  if count > 0 then return ids, records end
end

-- The tenant whose order is said to hold the oldest. One that nothing is known of has none: repair brings it back.
local function owner_of_first(shelf, name)
  local tenant = read_tenant(shelf.queue, name)
  if not tenant then
    drop(shelf.heads, name)
    drop(shelf.large, name)
  end
  return tenant
end

-- The oldest of all: of the order of all tenants, or of one that has its own.
local function oldest(shelf, want, forced)
  local heads = shelf.queue[shelf.larges] > 0 and firsts(shelf.heads, 2) or {}
  local bound, name = huge, nil
  if heads[1] then bound, name = heads[1][1], heads[1][2] end
  local ids, records, again, next = take_from(shelves.order(shelf), want, forced, bound)
  if again or not name or (bound > now and forced == 0) then return ids, records, again end
  local tenant = owner_of_first(shelf, name)
  if not tenant then return ids, records, true end
  local limit = min(next or huge, heads[2] and heads[2][1] or huge)
  ids, records, again, next = take_from(shelves.order(shelf, tenant), want, forced, limit)
  if next == false then
    shelves.let_go(shelf, tenant)
    return ids, records, true
  end
  if next and shelf.listed then next = min(next, now + shelf.queue.keep) end -- as the next that ends in the usual way
  if next then set_at(shelf.heads, name, next) end
  return ids, records, again or (next or 0) > bound
end

-- Whether none of these holds so much that it gives before others: what is noted of their shares may be of another room.
local function hold_little(shelf, heads)
  local names = {}
  for i = 1, #heads do names[i] = heads[i][2] end
  load_tenants(shelf.queue, names)
  for i = 1, #names do
    local tenant = shelf.queue.tenants[names[i]]
    if not tenant or shelves.share(shelf, tenant) > 1 / LEAST then return false end
  end
  return true
end

-- The next ones of `oldest`, up to `want` and whatever their time, where tenants have orders of their own: what it gives if it is
-- asked again and again, but their heads are read once, and written once. nil if it has to be asked.
local function oldest_in_turn(shelf, want)
  local heads = shelf.queue[shelf.larges] > 0 and firsts(shelf.heads, LOOKS) or {}
  if #heads == 0 or #heads == LOOKS or not hold_little(shelf, heads) then return nil end
  local front, ahead, newest, moved = 1, math.ceil(want / #heads) + 1, now + shelf.queue.keep, {}
  local ids, records, count, of_all = {}, {}, 0, nil -- the last: when the next one in the order of all is over
  while count < want and heads[front] do
    local bound, name, left = heads[front][1], heads[front][2], want - count
    local found, rows, again, next = {}, nil, false, of_all
    if not of_all or of_all <= bound then
      found, rows, again, next = take_from(shelves.order(shelf), left, left, bound)
      of_all = not again and (next or huge)
    end
    if not again and next ~= nil and not found[1] then
      local tenant = owner_of_first(shelf, name)
      if not tenant then break end
      local limit = min(of_all, heads[front + 1] and heads[front + 1][1] or huge)
      found, rows, again, next = take_from(shelves.order(shelf, tenant), left, left, limit, nil, ahead)
      if next == false then
        shelves.let_go(shelf, tenant)
        moved[name], front, again = nil, front + 1, true
      elseif next then
        if shelf.listed then next = min(next, newest) end -- as the next that ends in the usual way
        local head, place = { next, name }, #heads + 1
        moved[name], front, again = next, front + 1, again or next > bound
        while place > front and earlier(head, heads[place - 1]) do
          heads[place] = heads[place - 1]
          place = place - 1
        end
        heads[place] = head
      end
    end
    for i = 1, #found do ids[count + i], records[count + i] = found[i], rows[i] end
    count = count + #found
    if not again then break end
  end
  for name, at in pairs(moved) do set_at(shelf.heads, name, at) end
  if count > 0 then return ids, records end
end

-- Whether no task that a queue keeps can be past its time: `look` says so, unless it was put off.
local function none_is_over(queue) return queue.look > now + LATER and not (queue.soon and queue.soon <= now) end

local function trim_shelf(shelf, most)
  local queue, trimmed, looks, again = shelf.queue, 0, 0, true
  while again and trimmed < most and looks < LOOKS and tombs.read < MOST_READ do
    local all, over, full, ids, records
    if shelf.listed then
      all = queue.counts[COMPLETED] + queue.counts[CANCELLED]
      over, full = max(all - queue.keep_count - pins.aside(queue.name), 0), queue.done_bytes > queue.keep_bytes
    else
      all, over, full = queue.counts[DEAD], 0, queue.dead_bytes > queue.dead_max
    end
    local enough = looks > 0 and over == 0 and not full and none_is_over(queue)
    if all == 0 or enough then break end
    local tenant, many = nil, nil
    local forced = full and 1 or over
    if over > 1 and not full then -- each of several gives some
      local together = giver(shelf) and take_in_turn or oldest_in_turn
      ids, records = together(shelf, min(over, most - trimmed))
    end
    if not ids and (over > 0 or full) then tenant, many = giver(shelf) end
    if ids then
      again = true
    elseif tenant then
      local next
      forced = min(forced, many)
      local want = min(most - trimmed, forced)
      -- What it had before it held much is older, and in the order of all.
      ids, records, again = take_from(shelves.order(shelf), want, forced, huge, tenant)
      if not again then ids, records, again, next = take_from(shelves.order(shelf, tenant), want, forced, huge) end
      if next == false then
        shelves.let_go(shelf, tenant)
        again = true
      end
    else
      ids, records, again = oldest(shelf, min(most - trimmed, full and 1 or max(over, shelf.listed and 1 or most)), forced)
    end
    shelves.forget_all(queue, ids, records)
    trimmed, looks = trimmed + #ids, looks + 1
  end
  return trimmed
end

function shelves.trim(queue, most)
  local trimmed = trim_shelf(shelves.of(queue, COMPLETED), most)
  if queue.counts[DEAD] == 0 then return trimmed end
  return trimmed + trim_shelf(shelves.of(queue, DEAD), most - trimmed)
end

-- When the first task that is kept is over; nil if none is.
local function first_over(queue)
  if queue.counts[COMPLETED] + queue.counts[CANCELLED] + queue.counts[DEAD] == 0 then return nil end
  local least = huge
  for _, state in ipairs({ COMPLETED, DEAD }) do
    local shelf = shelves.of(queue, state)
    local listed, rows = shelves.next_listed(shelves.order(shelf), 1)
    local first, head = firsts(shelves.order(shelf).set, 1)[1], shelf.queue[shelf.larges] > 0 and firsts(shelf.heads, 1)[1]
    least = min(least, listed[1] and kept_till(rows[1]) or huge, first and first[1] or huge, head and head[1] or huge)
  end
  return least < huge and least or nil
end

-- Look at the queues whose time has come, forget up to `most` things there, and say when to look again. Also says
-- whether others are left to look at.
function shelves.trim_due(most)
  local count, found = 0, firsts(agenda('trims'), STEP, now)
  for _, each in ipairs(found) do
    local queue = read_queue(each[2])
    count = count + (queue and shelves.trim(queue, most - count) or 0)
    if count >= most then return count, true end
    local ends = queue and ends_at(queue)
    if not queue then
      drop(agenda('trims'), each[2]) -- its record was lost
    elseif ends and ends <= now and shelves.is_unused(queue) then
      remove_queue(queue)
      count = count + 1
    else
      local next = first_over(queue) or ends
      look_at(queue, next and max(next, now + LATER) or 0)
    end
  end
  return count, #found == STEP
end

-- Forget up to `most` of all that a queue keeps, whatever their time; what was dead leaves an event.
function shelves.forget_finished(queue, most)
  local count, taken = 0, 0
  for _, state in ipairs({ COMPLETED, DEAD }) do
    local shelf, again = shelves.of(queue, state), true
    while again and taken < most do
      local ids, _, moved, next = take_from(shelves.order(shelf), most - taken, most - taken, huge)
      local own = not moved and shelf.queue[shelf.larges] > 0 and firsts(shelf.heads, 1)[1]
      if own then
        local tenant = owner_of_first(shelf, own[2])
        if tenant then ids, _, moved, next = take_from(shelves.order(shelf, tenant), most - taken, most - taken, huge) end
        if tenant and next == false then shelves.let_go(shelf, tenant) end
        moved = moved or not tenant or next == false
      end
      if #ids > 0 then load_tasks(ids) end
      for _, id in ipairs(ids) do
        local task = tasks[id]
        if task then
          if task.state == DEAD then emit('deleted', task) end
          shelves.forget(task)
          count = count + 1
        end
      end
      taken, again = taken + #ids, moved
    end
  end
  return count
end

-- Whether nobody has set anything for a queue, or keeps room in it for members of a flow.
function shelves.is_unused(queue)
  return call('HEXISTS', prefix .. 'settings', queue.name) + call('HEXISTS', prefix .. 'reserved', queue.name .. SEP) == 0
end

function shelves.trim_ended()
  for name, count in pairs(ended) do
    ended[name] = nil
    shelves.trim(queues[name], 2 * count) -- at most two others for each
  end
end

-- @part forget
-- Forgetting finished tasks by their records, without making a task of each.
local gone, gone_parts
begins[#begins + 1] = function()
  gone, gone_parts = {}, {} -- ids to remove; by bit, those of them that have such a part
end

-- The parts of a task that few have go with it.
local function drop_parts(id, parts)
  for bit in pairs(PARTS) do
    if floor(parts / bit) % 2 == 1 then
      local ids = gone_parts[bit] or {}
      gone_parts[bit], ids[#ids + 1] = ids, id
    end
  end
end

-- Forgotten before its time, to make room: a chosen id stays known, what is dead leaves an event.
local function note_dropped(queue, tenant, state, id, till, life, parts)
  if life > 0 then tombs.put(tenant[NAME], id, state, till, floor(parts / BODY_GONE) % 2 == 1) end
  if state ~= DEAD then return end
  stats.add(queue, DROPPED, 1)
  row('dropped', DEAD, queue.name, tenant[NAME], 0, 0, 'keep_dead_bytes', id)
end

-- Forget tasks by their records alone, unless somebody is tied to one.
function shelves.forget_all(queue, ids, records)
  if #ids == 0 then return end
  tie.load(ids)
  local names, whose, last, name = {}, {}, nil, nil
  for i = 1, #ids do
    local record = records[i]
    if record and record ~= last then
      last, name = record, tenant_in(record)
      names[#names + 1] = name
    end
    whose[i] = name
  end
  make_tenants(queue, names)
  local gone_size, alike, tenant, state, parts, till, fate_bytes, last_sizes, life, bytes, large
    = #gone, 0, nil, nil, nil, nil, nil, nil, nil, nil, nil
  local counts, cache = queue.counts, queue.tenants
  local function count() -- those that were the same
    if alike == 0 then return end
    tenant[COUNT + state], counts[state] = tenant[COUNT + state] - alike, counts[state] - alike
    shelves.count_bytes(tenant, state, -alike * bytes)
    alike = 0
  end
  last = nil
  for i = 1, #ids do
    local id, record = ids[i], records[i]
    if tasks[id] or latest[id] or tied[id] then
      local task = known(id)
      if task.expires > now then note_dropped(queue, tenant_of(task), task.state, id, task.expires, task.life, task.parts) end
      shelves.forget(task)
    elseif record and tasks[id] ~= false then
      if record ~= last then
        count()
        local begins, size_text = sub(record, 1, FATE_END), sub(record, -SIZE_LENGTH)
        if size_text ~= last_sizes or begins ~= fate_bytes then
          local fate = shelves.fate_of(record)
          local size, extra
          life, size, extra = unpacked(SIZE, size_text)
          fate_bytes, last_sizes, state, parts, bytes = begins, size_text, fate.state, fate.parts, COUNTED + size + extra
          till = fate.expires > now and (life > 0 or state == DEAD) and fate.expires -- if that has to be noted
        end
        last, tenant = record, cache[whose[i]]
        if tenant[OWNS] > 0 then
          large = large or {}
          large[tenant] = true
        end
      end
      if till then note_dropped(queue, tenant, state, id, till, life, parts) end
      gone_size, alike = gone_size + 1, alike + 1
      gone[gone_size], tasks[id] = id, false
      if parts > 0 then drop_parts(id, parts) end
    end
  end
  count()
  for each in pairs(large or {}) do shelves.rank(each) end
end

function shelves.write_gone()
  for id, task in pairs(forgotten) do
    gone[#gone + 1] = id
    if task.parts % 64 > 0 then drop_parts(id, task.parts) end
  end
  if #gone == 0 then return end
  write_all('HDEL', prefix .. 'tasks', gone)
  write_all('HDEL', prefix .. 'records', gone)
  for bit, ids in pairs(gone_parts) do write_all('HDEL', prefix .. PARTS[bit], ids) end
end
