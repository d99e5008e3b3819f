-- Fast path (see enqueue.lua).

-- @part lend_straight
-- Plain tasks are chosen and lent as they are stored, many at a time.
-- Plain is a task that waits for the first time, has no deadline and needs no limiter; it may have a record, because
-- it was delayed, depended on others or has a unique key that it keeps when it starts. Whatever else a line holds is
-- lent by the engine (fair.dispatch), one by one, so what is unusual costs nothing else its way. With STRAIGHT
-- (fast_path/ends.plain_ends) set to false the engine lends all of them, and every key and answer is the same:
-- tests/broker/redis/test_straight_exchange.py.
-- @share drawn stored heads
local byte
-- The tenants that may run stand in the order in which they are stored, read in windows; those that moved in this call, and
-- the tags they had then, in a heap. Lowest (tag, name) first.
local list, at, read_to, all, heap, heap_tags
-- What was read of lines: entries, their messages, or false where there is more to a task than that, and the records of those
-- that have one.
local entries, messages, records
-- Lines that a number stands for (t[LINES]), because nothing was done to their tenant but to lend from its only line: level, key,
-- whether all entries are plain tasks, how many were taken, and which of those that were read is the last taken, and the last.
local count, levels, keys, plains, cuts, reads, ends
local moved -- tenants that were served from such lines
local last_rest, last_kind -- what the last head said, which most heads say
local recorded -- by place among those taken: its record, of the plain ones that have one
begins[#begins + 1] = function()
  byte = string.byte
  drawn, stored, heads = {}, {}, {} -- by place among those taken: tenant, message and its head, of the plain ones
  entries, count, recorded = nil, 0, {}
end

-- The engine has to do something with a line that has a number.
straight_line = function(tenant, level)
  local number = tenant[LINES]
  tenant[LINES] = { false, false, false }
  local own_line, cut = line(tenant, levels[number]), cuts[number]
  own_line[L_STORED], own_line[L_TAKEN], own_line[L_BASE] = own_line[L_STORED] + cut, cut, cut
  own_line[L_WINDOW], own_line[L_FIRST], cuts[number] = { unpack(entries, reads[number] + 1, ends[number]) }, reads[number], nil
  return line(tenant, level)
end

local function push_heap(tenant)
  local tag, name, place = tenant[TAG], tenant[NAME], #heap + 1
  while place > 1 do
    local parent = floor(place / 2)
    local other = heap_tags[parent]
    if tag > other or tag == other and not less(name, heap[parent][NAME]) then break end
    heap[place], heap_tags[place] = heap[parent], other
    place = parent
  end
  heap[place], heap_tags[place] = tenant, tag
end
heap_push = function(_, tenant) push_heap(tenant) end

local function pop_heap()
  local size = #heap
  local tenant, tag, place = heap[size], heap_tags[size], 1
  heap[size], heap_tags[size] = nil, nil
  size = size - 1
  if size == 0 then return end
  while 2 * place <= size do
    local child = 2 * place
    local child_tag = heap_tags[child]
    if child < size then
      local other = heap_tags[child + 1]
      if other < child_tag or other == child_tag and less(heap[child + 1][NAME], heap[child][NAME]) then
        child, child_tag = child + 1, other
      end
    end
    if tag < child_tag or tag == child_tag and less(tenant[NAME], heap[child][NAME]) then break end
    heap[place], heap_tags[place] = heap[child], child_tag
    place = child
  end
  heap[place], heap_tags[place] = tenant, tag
end

-- Whether a record is that of a plain task: of its first life, on the level it came with, and a key it has is not for its start.
local FIRST_LIFE = ('\0'):rep(4)
local function is_plain_record(record)
  local hold, incarnation = byte(record, FATE_END + 1, FATE_END + 2)
  return hold < MOVED and hold ~= 1 and incarnation == 0 and sub(record, -SIZE_LENGTH, 4 - 1 - SIZE_LENGTH) == FIRST_LIFE
    and shelves.fate_of(record).waits_first
end

-- Read the next entries of lines, so many each, and what waits there. Of `plain` ones records need not be read.
local function read_lines(lines, each, plain)
  local from = #entries
  local total = from
  for k = 1, #lines do
    local each_line = lines[k]
    local cut = cuts[each_line]
    local key, taken = cut and keys[each_line] or each_line[L_KEY], cut or each_line[L_TAKEN]
    sound[key] = true
    local before = total
    if cut and each == 1 then
      total = total + 1
      entries[total] = call('LINDEX', key, taken) or nil
      if not entries[total] then total = before end
    else
      local found = call('LRANGE', key, taken, taken + each - 1)
      for i = 1, #found do entries[total + i] = found[i] end
      total = total + #found
      if not cut then each_line[L_BASE], each_line[L_WINDOW], each_line[L_FIRST] = taken, found, before end
    end
    if cut then reads[each_line], ends[each_line] = before, total end
  end
  if total == from then return end
  if plain then
    local found = call('HMGET', prefix .. 'tasks', unpack(entries, from + 1, total))
    sound[prefix .. 'tasks'] = true
    if from == 0 then messages = found return end
    for i = 1, total - from do messages[from + i] = found[i] end
    return
  end
  local ids = {}
  for i = from + 1, total do ids[i - from] = match(entries[i], '^[^\31]+') end
  read_ahead(ids)
  for i = from + 1, total do
    local id = entries[i] -- nothing is known of it if the entry is more than an id
    local record, value = raw[id], values[id] or false
    if record and value and is_plain_record(record) then records[i] = record elseif record ~= false then value = false end
    messages[i] = value
  end
end

-- The same for what this call put to the end of lines of which nothing else is left: tasks that were released or are due.
local function read_added(lines, each)
  local total, ids, places, asked = #entries, {}, {}, 0
  for k = 1, #lines do
    local each_line = lines[k]
    local back, gone = each_line[L_BACK], each_line[L_GONE]
    each_line[L_ADDED], each_line[L_ADDED_AT], each_line[L_ADDED_LIST] = total, gone, back
    for i = gone + 1, min(gone + each, #back) do
      local id = back[i]
      local record = latest[id]
      total = total + 1
      entries[total], messages[total] = id, false
      if record and is_plain_record(record) and unpacked('<I', record, #record - 7) <= LARGE_BODY then
        records[total], messages[total] = record, values[id] or false
        if not values[id] then asked = asked + 1 ids[asked], places[asked] = id, total end
      end
    end
    each_line[L_ADDED_TO] = total
  end
  if asked == 0 then return end
  local found = call('HMGET', prefix .. 'tasks', unpack(ids))
  sound[prefix .. 'tasks'] = true
  for k = 1, asked do messages[places[k]] = found[k] end
end

-- Read the next tenants that may run, and the beginnings of their lines.
local function widen(queue, wanted)
  local names, found, new_count, over = {}, call('ZRANGE', queue.ready.key, read_to, read_to + wanted - 1), 0, queue.ready.over
  sound[queue.ready.key] = true
  read_to, all, list, at = read_to + #found, #found < wanted, {}, 1
  for i = 1, #found do
    local name = found[i]
    if name == SENTINEL then all = true elseif over[name] == nil then new_count = new_count + 1 names[new_count] = name end
  end
  load_tenants(queue, names)
  local cache, lists, plain, other = queue.tenants, queue.lists, {}, {}
  for i = 1, new_count do
    local name = names[i]
    local tenant = cache[name]
    list[i] = tenant
    local length0, length1, length2, length3, line_of = tenant[LEN], tenant[LEN + 1], tenant[LEN + 2], tenant[LEN + 3], nil
    local sum = length0 + length1 + length2 + length3
    local is_plain = tenant[SPECIAL] == 0 and sum == tenant[COUNT + QUEUED]
    local only = length2 == sum and 2 or length0 == sum and 0 or length1 == sum and 1 or length3 == sum and 3
    if not STRAIGHT or sum == 0 or tenant[LOWER] then line_of = nil
    elseif only and not tenant[LINES] and tenant[WOKEN] == '' then
      count = count + 1
      line_of, tenant[LINES], levels[count], keys[count] = count, count, only, lists .. only .. ':' .. name
      plains[count], cuts[count] = is_plain, 0
    else
      local own_line = line(tenant, level_of(tenant))
      if #own_line[L_FRONT] == 0 and own_line[L_TAKEN] < own_line[L_STORED] then line_of = own_line end
    end
    if line_of then
      local kind = is_plain and plain or other
      kind[#kind + 1] = line_of
    end
  end
  local each = math.ceil(wanted / max(#plain + #other, 1))
  if #plain > 0 then read_lines(plain, each, true) end
  if #other > 0 then read_lines(other, each, false) end
end

local function open_order(queue, wanted)
  if not entries then entries, messages, records, levels, keys, plains, cuts, reads, ends = {}, {}, {}, {}, {}, {}, {}, {}, {} end
  list, at, read_to, all, heap, heap_tags, moved = {}, 1, 0, false, {}, {}, {}
  local lines = {}
  for name, tag in pairs(queue.ready.over) do
    if tag and name ~= SENTINEL then
      local tenant = read_tenant(queue, name)
      push_heap(tenant)
      local own_line = STRAIGHT and type(tenant[LINES]) == 'table' and tenant[LINES][level_of(tenant)]
      if own_line and own_line[L_TAKEN] >= own_line[L_STORED] and own_line[L_BACK][own_line[L_GONE] + 1] then
        lines[#lines + 1] = own_line
      end
    end
  end
  if #lines > 0 then read_added(lines, math.ceil(wanted / #lines)) end
end

-- Take out the runnable tenant with the lowest tag, ties by name. Then tag and name of the one behind it: the lowest of all
-- where that is not known yet.
local function lowest(queue, wanted)
  local over = queue.ready.over
  local tenant, top, tag
  while true do
    tenant, top, tag = list[at], heap[1], heap_tags[1]
    if not tenant and not all then
      widen(queue, wanted)
    elseif tenant and over[tenant[NAME]] ~= nil then
      at = at + 1 -- it has moved, or waits for something by now
    elseif tenant and not (top and (tag < tenant[TAG] or tag == tenant[TAG] and less(top[NAME], tenant[NAME]))) then
      at = at + 1
      break
    elseif not top then
      return nil
    else
      pop_heap()
      if top[STATUS] == READY and tag == top[TAG] then
        tenant, top, tag = top, heap[1], heap_tags[1]
        break
      end
    end
  end
  local next = list[at]
  if not next then
    if not all then return tenant, -huge end
    return tenant, tag, top and top[NAME]
  end
  if top and (tag < next[TAG] or tag == next[TAG] and less(top[NAME], next[NAME])) then return tenant, tag, top[NAME] end
  return tenant, next[TAG], next[NAME]
end

-- The next line of a tenant, as a table, with what was read of it: its level, whether all of its entries are plain, and between
-- which entries it goes on; and whether these are what this call put there. nil: its next task is not among them.
local function next_line(tenant, wanted)
  local level = tenant[WOKEN] == '' and not tenant[LOWER] and level_of(tenant) -- more than four levels are for the engine
  local own_line = level and line(tenant, level)
  if not own_line or #own_line[L_FRONT] > 0 then return nil end
  if own_line[L_TAKEN] >= own_line[L_STORED] then
    local at = own_line[L_ADDED_LIST] == own_line[L_BACK] and own_line[L_ADDED] + own_line[L_GONE] - own_line[L_ADDED_AT]
    if not at or at >= own_line[L_ADDED_TO] then
      read_added({ own_line }, wanted)
      at = own_line[L_ADDED]
    end
    return own_line, level, false, at, own_line[L_ADDED_TO], true
  end
  local plain = tenant[SPECIAL] == 0 and tenant[LEN] + tenant[LEN + 1] + tenant[LEN + 2] + tenant[LEN + 3] == tenant[COUNT + QUEUED]
  local place = own_line[L_FIRST] and own_line[L_FIRST] + own_line[L_TAKEN] - own_line[L_BASE]
  if not place or place >= own_line[L_FIRST] + #own_line[L_WINDOW] then
    read_lines({ own_line }, wanted, plain)
    place = own_line[L_FIRST]
  end
  return own_line, level, plain, place, min(own_line[L_FIRST] + #own_line[L_WINDOW], place + own_line[L_STORED] - own_line[L_TAKEN])
end

-- Whether one more task may go under the limits of its tenant and its queue, `lent` being on their way; then it does.
local function passes(queue, tenant, lent)
  local gate = gate_of(tenant)
  if gate and limits.closed_until(gate, tenant[COUNT + RUNNING] + lent) or limits.closed_until(queue, queue.counts[RUNNING] + lent) then
    return false
  end
  if gate then limits.pass_one(gate) end
  limits.pass_one(queue)
  return true
end

-- Lend plain tasks of a tenant, as long as it is the lowest. Returns how many; 0: its next task is for the engine.
local function lend_plainly(queue, tenant, budget, place, taken, rival_tag, rival_name)
  local most, own_line = budget.wanted - place, tenant[LINES]
  local cut, level, plain, entry_at, last, added = cuts[own_line], nil, nil, nil, nil, nil
  if cut then
    level, plain = levels[own_line], plains[own_line]
    if reads[own_line] >= ends[own_line] and tenant[LEN + level] > 0 then read_lines({ own_line }, most, plain) end
    entry_at, last = reads[own_line], ends[own_line]
  else
    own_line, level, plain, entry_at, last, added = next_line(tenant, most)
  end
  if not own_line or entry_at >= last then return 0 end
  local lent, tag, clock, pace = 0, tenant[TAG], queue.clock, STRIDE * UNIT / queue.weight
  if budget.counted then most = 1 elseif most > budget.visits + 1 then most = budget.visits + 1 end
  if not cut and level > 0 and tenant[LEN + level] < tenant[LEN] + tenant[LEN + 1] + tenant[LEN + 2] + tenant[LEN + 3] then most = 1 end
  local limited = tenant[GATED] == 1 or queue.concurrency >= 0 or queue.rate > 0
  if most > last - entry_at then most = last - entry_at end
  local head, long, step, special = nil, 0, 0, 0
  while lent < most do
    local value, id = messages[entry_at + 1], entries[entry_at + 1]
    if not value or not plain and tasks[id] ~= nil then break end
    if not head or sub(value, 13, long) ~= head then
      local low, high = byte(value, 13, 14)
      local to = 14 + low + 256 * high
      local rest = sub(value, 19 + #queue.name + #tenant[NAME], to) -- behind queue, tenant and level
      if rest ~= last_rest then last_rest, last_kind = rest, kind_of(rest) end
      if last_kind.limited then break end
      head, long, step = sub(value, 13, to), to, last_kind.cost * STRIDE * UNIT / tenant[WEIGHT]
    end
    if limited and not passes(queue, tenant, lent) then break end
    lent, entry_at, place = lent + 1, entry_at + 1, place + 1
    local to = clock + pace
    if to < tag then to = tag elseif to > tag + STRIDE then to = tag + STRIDE end
    if to > clock then clock = to end
    tag = tag + step
    taken[place], drawn[place], stored[place], heads[place] = id, tenant, value, head
    -- An id that was cancelled, deleted and used again may stand here twice; it is lent once.
    if not plain then
      tasks[id] = false
      if records[entry_at] then recorded[place], special = records[entry_at], special + 1 end
    end
    if rival_tag and (rival_tag < tag or rival_tag == tag and less(rival_name, tenant[NAME])) then break end
  end
  if lent == 0 then return 0 end
  local counts, left = queue.counts, tenant[COUNT + QUEUED] - lent
  tenant[TAG], tenant[LEN + level], tenant[CHANGED], queue.clock, queue.changed = tag, tenant[LEN + level] - lent, true, clock, true
  tenant[COUNT + QUEUED], tenant[COUNT + RUNNING], tenant[SPECIAL] = left, tenant[COUNT + RUNNING] + lent, tenant[SPECIAL] - special
  counts[QUEUED], counts[RUNNING] = counts[QUEUED] - lent, counts[RUNNING] + lent
  if level > 0 then tenant[TURN] = (tenant[TURN] + lent) % 8 end
  if queue.warned == 1 and depth(queue) < queue.warn then queue.warned = 0 end
  if cut then
    if cut == 0 then moved[#moved + 1] = tenant end
    cuts[own_line], reads[own_line] = cut + lent, entry_at
    if left > 0 then push_heap(tenant) return lent end
  else
    local from = added and L_GONE or L_TAKEN
    own_line[from] = own_line[from] + lent
  end
  move_on(queue, tenant)
  return lent
end

-- The places of those that were served.
local function close_order(queue)
  local adds, size, over = {}, 0, queue.ready.over
  for i = 1, #moved do
    local tenant = moved[i]
    if over[tenant[NAME]] == nil then
      adds[size + 1], adds[size + 2] = tenant[TAG], tenant[NAME]
      size = size + 2
    end
  end
  if size > 0 then write_all('ZADD', queue.ready.key, adds) end
end

-- Note how much was taken. It takes a large task to fill the budget, so up to the first of them nothing is counted.
local function count_bytes(budget, taken)
  for i = budget.counted + 1, #taken do
    local size = drawn[i] and 0 or taken[i].size
    if drawn[i] then
      local body, trace = unpacked('<II', stored[i], 13 + #heads[i])
      size = body + trace
    end
    budget.bytes = budget.bytes - size
  end
  budget.counted = #taken
end

-- Take tasks of a queue, each of the tenant with the lowest tag: one fetch of n gives the same sequence as n fetches of one.
function serve(queue, budget, taken)
  open_order(queue, budget.wanted - #taken)
  queue.heap = true -- who becomes runnable from now on has to stand in the order
  local limited, wanted, place = queue.concurrency >= 0 or queue.rate > 0, budget.wanted, #taken
  while place < wanted and budget.visits > 0 and budget.drops > 0 and budget.bytes > 0 do
    local tenant, rival_tag, rival_name = lowest(queue, wanted - place)
    if not tenant then break end
    budget.visits = budget.visits - 1
    if limited and limits.closed_until(queue, queue.counts[RUNNING]) then break end -- the stored order is unchanged
    local lent = STRAIGHT and lend_plainly(queue, tenant, budget, place, taken, rival_tag, rival_name) or 0
    if lent > 0 then
      budget.visits, place = budget.visits - lent + 1, place + lent
    else
      lend_next(queue, tenant, budget, taken)
      place = #taken
    end
    if budget.counted then count_bytes(budget, taken) end
  end
  queue.heap = nil
  close_order(queue)
  drop_saved(queue, 2 * wanted)
end

-- Of a record the policy is the third byte, and the moment since which the task can run may be said there, or not.
local NO_MOMENT = ('\0'):rep(8)
-- Lend `first` to `last` of what was taken, all started or all held: write the records of the plain ones and say that they began.
-- `lend_one` does the same for a task of the engine.
local function lend_each(taken, ids, first, last, started, lend_one)
  local written_size, begin, fate
    = #written, straight.own_begin(), pack(FATE, RUNNING, 0, 0, 0, 0, 0, 0, meta.token, started and now or 0, 0, 0, 0, 0)
  local own, old = sub(begin, 2, -5), nil -- of a record that a task had
  local hour, head, size, accepted, record, since, wait, tenant, queue, counters, event_group, mark, from, group_size
    = floor(now / 3600), nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, first, 0
  local function began(to) -- those of a queue that were accepted at once
    local many = to - from + 1
    if many == 0 then return end
    counters[STARTED], counters.waits[since], from = counters[STARTED] + many, (counters.waits[since] or 0) + many, to + 1
    rows_added(mark, many)
  end
  for place = first, last do
    local owner = drawn[place]
    if not owner then
      if event_group then began(place - 1) end
      tenant, event_group, from, ids[place] = nil, nil, place + 1, taken[place].id
      lend_one(taken[place], started)
    else
      local value, id, known_record = stored[place], taken[place], recorded[place]
      local since_then = known_record and sub(known_record, SINCE + 1, SINCE + 8)
      if not known_record or since_then == NO_MOMENT then since_then = sub(value, 1, 8) end
      if since_then ~= accepted then
        if event_group then began(place - 1) end
        accepted, since = since_then, unpacked('<d', since_then)
        wait = now - since
        if not started then fate, record = sub(fate, 1, SINCE) .. accepted .. sub(fate, SINCE + 9), nil end
      end
      if owner ~= tenant and started then
        if owner[QUEUE] ~= queue or not event_group then
          if event_group then began(place - 1) end
          queue = owner[QUEUE]
          event_group, counters = group_of('started', RUNNING, queue.name, meta.token, 1, CALLER), stats.of(queue)
          mark, group_size = last_mark(), #event_group
        end
        tenant = owner
        if tenant[HOUR] ~= hour then stats.turn(tenant, hour) end
        local name = '\28' .. tenant[NAME]
        if name ~= mark then
          group_size = group_size + 1
          event_group[group_size], mark = name, name
        end
      end
      if known_record then
        if known_record ~= old or not record then
          old, head = known_record, nil
          record = sub(fate, 1, 2) .. sub(known_record, 3, 3) .. sub(fate, 4) .. sub(known_record, FATE_END + 1, FATE_END + 1) .. own
            .. sub(known_record, FATE_END + 3)
        end
      elseif heads[place] ~= head or #value ~= size or not record then
        old = nil
        head, size = heads[place], #value
        local body, trace = unpacked('<II', value, 13 + #head)
        record = fate .. begin .. head .. pack(SIZE, 0, body + trace, 0)
      end
      ids[place], written[written_size + 1], written[written_size + 2] = id, id, record
      written_size = written_size + 2
      if started then
        group_size = group_size + 1
        event_group[group_size], tenant[HOUR + STARTED] = id, tenant[HOUR + STARTED] + 1
        if wait > tenant[WAITED] then tenant[WAITED] = wait end
      end
    end
  end
  if event_group then began(last) end
end

function lend_straight(taken, ids, start, lend_one)
  lend_each(taken, ids, 1, start, true, lend_one)
  lend_each(taken, ids, start + 1, #taken, false, lend_one)
end

writers[#writers + 1] = function()
  local pops, size = {}, 0
  for i = 1, count do
    local cut = cuts[i]
    if cut and cut > 0 then
      pops[size + 1], pops[size + 2] = keys[i], cut
      size = size + 2
    end
  end
  pop_all(pops)
end
after[#after + 1] = function()
  drawn, stored, heads, entries, messages, records, recorded, list, heap, moved = nil, nil, nil, nil, nil, nil, nil, nil, nil, nil
end
