-- Fast path (skip it on a first reading, see fast_path/enqueue.lua).

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
straight_line = function(t, level)
  local n = t[LINES]
  t[LINES] = { false, false, false }
  local l, cut = line(t, levels[n]), cuts[n]
  l[L_STORED], l[L_TAKEN], l[L_BASE] = l[L_STORED] + cut, cut, cut
  l[L_WINDOW], l[L_FIRST], cuts[n] = { unpack(entries, reads[n] + 1, ends[n]) }, reads[n], nil
  return line(t, level)
end

local function push_heap(t)
  local tag, name, i = t[TAG], t[NAME], #heap + 1
  while i > 1 do
    local up = floor(i / 2)
    local other = heap_tags[up]
    if tag > other or tag == other and not less(name, heap[up][NAME]) then break end
    heap[i], heap_tags[i] = heap[up], other
    i = up
  end
  heap[i], heap_tags[i] = t, tag
end
heap_push = function(_, t) push_heap(t) end

local function pop_heap()
  local n = #heap
  local t, tag, i = heap[n], heap_tags[n], 1
  heap[n], heap_tags[n] = nil, nil
  n = n - 1
  if n == 0 then return end
  while 2 * i <= n do
    local child = 2 * i
    local its = heap_tags[child]
    if child < n then
      local other = heap_tags[child + 1]
      if other < its or other == its and less(heap[child + 1][NAME], heap[child][NAME]) then child, its = child + 1, other end
    end
    if tag < its or tag == its and less(t[NAME], heap[child][NAME]) then break end
    heap[i], heap_tags[i] = heap[child], its
    i = child
  end
  heap[i], heap_tags[i] = t, tag
end

-- Whether a record is that of a plain task: of its first life, on the level it came with, and a key it has is not for its start.
local FIRST_LIFE = ('\0'):rep(4)
local function is_plain_record(r)
  local hold, incarnation = byte(r, FATE_END + 1, FATE_END + 2)
  return hold < MOVED and hold ~= 1 and incarnation == 0 and sub(r, -SIZE_LENGTH, 4 - 1 - SIZE_LENGTH) == FIRST_LIFE
    and shelves.fate_of(r).waits_first
end

-- Read the next entries of lines, so many each, and what waits there. Of `plain` ones records need not be read.
local function read_lines(lines, each, plain)
  local from = #entries
  local n = from
  for k = 1, #lines do
    local l = lines[k]
    local cut = cuts[l]
    local key, taken = cut and keys[l] or l[L_KEY], cut or l[L_TAKEN]
    sound[key] = true
    local before = n
    if cut and each == 1 then
      n = n + 1
      entries[n] = call('LINDEX', key, taken) or nil
      if not entries[n] then n = before end
    else
      local found = call('LRANGE', key, taken, taken + each - 1)
      for i = 1, #found do entries[n + i] = found[i] end
      n = n + #found
      if not cut then l[L_BASE], l[L_WINDOW], l[L_FIRST] = taken, found, before end
    end
    if cut then reads[l], ends[l] = before, n end
  end
  if n == from then return end
  if plain then
    local found = call('HMGET', prefix .. 'tasks', unpack(entries, from + 1, n))
    sound[prefix .. 'tasks'] = true
    if from == 0 then messages = found return end
    for i = 1, n - from do messages[from + i] = found[i] end
    return
  end
  local ids = {}
  for i = from + 1, n do ids[i - from] = match(entries[i], '^[^\31]+') end
  read_ahead(ids)
  for i = from + 1, n do
    local id = entries[i] -- nothing is known of it if the entry is more than an id
    local r, value = raw[id], values[id] or false
    if r and value and is_plain_record(r) then records[i] = r elseif r ~= false then value = false end
    messages[i] = value
  end
end

-- The same for what this call put to the end of lines of which nothing else is left: tasks that were released or are due.
local function read_added(lines, each)
  local n, ids, places, m = #entries, {}, {}, 0
  for k = 1, #lines do
    local l = lines[k]
    local back, gone = l[L_BACK], l[L_GONE]
    l[L_ADDED], l[L_ADDED_AT], l[L_ADDED_LIST] = n, gone, back
    for i = gone + 1, min(gone + each, #back) do
      local id = back[i]
      local r = latest[id]
      n = n + 1
      entries[n], messages[n] = id, false
      if r and is_plain_record(r) and unpacked('<I', r, #r - 7) <= LARGE_BODY then
        records[n], messages[n] = r, values[id] or false
        if not values[id] then m = m + 1 ids[m], places[m] = id, n end
      end
    end
    l[L_ADDED_TO] = n
  end
  if m == 0 then return end
  local found = call('HMGET', prefix .. 'tasks', unpack(ids))
  sound[prefix .. 'tasks'] = true
  for k = 1, m do messages[places[k]] = found[k] end
end

-- Read the next tenants that may run, and the beginnings of their lines.
local function widen(q, wanted)
  local names, found, n, over = {}, call('ZRANGE', q.ready.key, read_to, read_to + wanted - 1), 0, q.ready.over
  sound[q.ready.key] = true
  read_to, all, list, at = read_to + #found, #found < wanted, {}, 1
  for i = 1, #found do
    local name = found[i]
    if name == SENTINEL then all = true elseif over[name] == nil then n = n + 1 names[n] = name end
  end
  load_tenants(q, names)
  local cache, lists, plain, other = q.tenants, q.lists, {}, {}
  for i = 1, n do
    local name = names[i]
    local t = cache[name]
    list[i] = t
    local l0, l1, l2, l3, line_of = t[LEN], t[LEN + 1], t[LEN + 2], t[LEN + 3], nil
    local sum = l0 + l1 + l2 + l3
    local is_plain = t[SPECIAL] == 0 and sum == t[COUNT + QUEUED]
    local only = l2 == sum and 2 or l0 == sum and 0 or l1 == sum and 1 or l3 == sum and 3
    if not STRAIGHT or sum == 0 or t[LOWER] then line_of = nil
    elseif only and not t[LINES] and t[WOKEN] == '' then
      count = count + 1
      line_of, t[LINES], levels[count], keys[count] = count, count, only, lists .. only .. ':' .. name
      plains[count], cuts[count] = is_plain, 0
    else
      local l = line(t, level_of(t))
      if #l[L_FRONT] == 0 and l[L_TAKEN] < l[L_STORED] then line_of = l end
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

local function open_order(q, wanted)
  if not entries then entries, messages, records, levels, keys, plains, cuts, reads, ends = {}, {}, {}, {}, {}, {}, {}, {}, {} end
  list, at, read_to, all, heap, heap_tags, moved = {}, 1, 0, false, {}, {}, {}
  local lines = {}
  for name, tag in pairs(q.ready.over) do
    if tag and name ~= SENTINEL then
      local t = read_tenant(q, name)
      push_heap(t)
      local l = STRAIGHT and type(t[LINES]) == 'table' and t[LINES][level_of(t)]
      if l and l[L_TAKEN] >= l[L_STORED] and l[L_BACK][l[L_GONE] + 1] then lines[#lines + 1] = l end
    end
  end
  if #lines > 0 then read_added(lines, math.ceil(wanted / #lines)) end
end

-- Take out the runnable tenant with the lowest tag, ties by name. Then tag and name of the one behind it: the lowest of all
-- where that is not known yet.
local function lowest(q, wanted)
  local over = q.ready.over
  local t, top, tag
  while true do
    t, top, tag = list[at], heap[1], heap_tags[1]
    if not t and not all then
      widen(q, wanted)
    elseif t and over[t[NAME]] ~= nil then
      at = at + 1 -- it has moved, or waits for something by now
    elseif t and not (top and (tag < t[TAG] or tag == t[TAG] and less(top[NAME], t[NAME]))) then
      at = at + 1
      break
    elseif not top then
      return nil
    else
      pop_heap()
      if top[STATUS] == READY and tag == top[TAG] then
        t, top, tag = top, heap[1], heap_tags[1]
        break
      end
    end
  end
  local next = list[at]
  if not next then
    if not all then return t, -huge end
    return t, tag, top and top[NAME]
  end
  if top and (tag < next[TAG] or tag == next[TAG] and less(top[NAME], next[NAME])) then return t, tag, top[NAME] end
  return t, next[TAG], next[NAME]
end

-- The next line of a tenant, as a table, with what was read of it: its level, whether all of its entries are plain, and between
-- which entries it goes on; and whether these are what this call put there. nil: its next task is not among them.
local function next_line(t, wanted)
  local level = t[WOKEN] == '' and not t[LOWER] and level_of(t) -- more than four levels are for the engine
  local l = level and line(t, level)
  if not l or #l[L_FRONT] > 0 then return nil end
  if l[L_TAKEN] >= l[L_STORED] then
    local at = l[L_ADDED_LIST] == l[L_BACK] and l[L_ADDED] + l[L_GONE] - l[L_ADDED_AT]
    if not at or at >= l[L_ADDED_TO] then
      read_added({ l }, wanted)
      at = l[L_ADDED]
    end
    return l, level, false, at, l[L_ADDED_TO], true
  end
  local plain = t[SPECIAL] == 0 and t[LEN] + t[LEN + 1] + t[LEN + 2] + t[LEN + 3] == t[COUNT + QUEUED]
  local i = l[L_FIRST] and l[L_FIRST] + l[L_TAKEN] - l[L_BASE]
  if not i or i >= l[L_FIRST] + #l[L_WINDOW] then
    read_lines({ l }, wanted, plain)
    i = l[L_FIRST]
  end
  return l, level, plain, i, min(l[L_FIRST] + #l[L_WINDOW], i + l[L_STORED] - l[L_TAKEN])
end

-- Whether one more task may go under the limits of its tenant and its queue, `n` being on their way; then it does.
local function passes(q, t, n)
  local gate = gate_of(t)
  if gate and limits.closed_until(gate, t[COUNT + RUNNING] + n) or limits.closed_until(q, q.counts[RUNNING] + n) then return false end
  if gate then limits.pass_one(gate) end
  limits.pass_one(q)
  return true
end

-- Lend plain tasks of a tenant, as long as it is the lowest. Returns how many; 0: its next task is for the engine.
local function lend_plainly(q, t, budget, place, taken, rival_tag, rival_name)
  local most, l = budget.wanted - place, t[LINES]
  local cut, level, plain, i, last, added = cuts[l], nil, nil, nil, nil, nil
  if cut then
    level, plain = levels[l], plains[l]
    if reads[l] >= ends[l] and t[LEN + level] > 0 then read_lines({ l }, most, plain) end
    i, last = reads[l], ends[l]
  else
    l, level, plain, i, last, added = next_line(t, most)
  end
  if not l or i >= last then return 0 end
  local n, tag, clock, pace = 0, t[TAG], q.clock, STRIDE * UNIT / q.weight
  if budget.counted then most = 1 elseif most > budget.visits + 1 then most = budget.visits + 1 end
  if not cut and level > 0 and t[LEN + level] < t[LEN] + t[LEN + 1] + t[LEN + 2] + t[LEN + 3] then most = 1 end
  local limited = t[GATED] == 1 or q.concurrency >= 0 or q.rate > 0
  if most > last - i then most = last - i end
  local head, long, step, special = nil, 0, 0, 0
  while n < most do
    local value, id = messages[i + 1], entries[i + 1]
    if not value or not plain and tasks[id] ~= nil then break end
    if not head or sub(value, 13, long) ~= head then
      local low, high = byte(value, 13, 14)
      local to = 14 + low + 256 * high
      local rest = sub(value, 19 + #q.name + #t[NAME], to) -- behind queue, tenant and level
      if rest ~= last_rest then last_rest, last_kind = rest, kind_of(rest) end
      if last_kind.limited then break end
      head, long, step = sub(value, 13, to), to, last_kind.cost * STRIDE * UNIT / t[WEIGHT]
    end
    if limited and not passes(q, t, n) then break end
    n, i, place = n + 1, i + 1, place + 1
    local to = clock + pace
    if to < tag then to = tag elseif to > tag + STRIDE then to = tag + STRIDE end
    if to > clock then clock = to end
    tag = tag + step
    taken[place], drawn[place], stored[place], heads[place] = id, t, value, head
    -- An id that was cancelled, deleted and used again may stand here twice; it is lent once.
    if not plain then
      tasks[id] = false
      if records[i] then recorded[place], special = records[i], special + 1 end
    end
    if rival_tag and (rival_tag < tag or rival_tag == tag and less(rival_name, t[NAME])) then break end
  end
  if n == 0 then return 0 end
  local counts, left = q.counts, t[COUNT + QUEUED] - n
  t[TAG], t[LEN + level], t[CHANGED], q.clock, q.changed = tag, t[LEN + level] - n, true, clock, true
  t[COUNT + QUEUED], t[COUNT + RUNNING], t[SPECIAL] = left, t[COUNT + RUNNING] + n, t[SPECIAL] - special
  counts[QUEUED], counts[RUNNING] = counts[QUEUED] - n, counts[RUNNING] + n
  if level > 0 then t[TURN] = (t[TURN] + n) % 8 end
  if q.warned == 1 and depth(q) < q.warn then q.warned = 0 end
  if cut then
    if cut == 0 then moved[#moved + 1] = t end
    cuts[l], reads[l] = cut + n, i
    if left > 0 then push_heap(t) return n end
  else
    local from = added and L_GONE or L_TAKEN
    l[from] = l[from] + n
  end
  move_on(q, t)
  return n
end

-- The places of those that were served.
local function close_order(q)
  local adds, n, over = {}, 0, q.ready.over
  for i = 1, #moved do
    local t = moved[i]
    if over[t[NAME]] == nil then
      adds[n + 1], adds[n + 2] = t[TAG], t[NAME]
      n = n + 2
    end
  end
  if n > 0 then write_all('ZADD', q.ready.key, adds) end
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
function serve(q, budget, taken)
  open_order(q, budget.wanted - #taken)
  q.heap = true -- who becomes runnable from now on has to stand in the order
  local limited, wanted, place = q.concurrency >= 0 or q.rate > 0, budget.wanted, #taken
  while place < wanted and budget.visits > 0 and budget.drops > 0 and budget.bytes > 0 do
    local t, rival_tag, rival_name = lowest(q, wanted - place)
    if not t then break end
    budget.visits = budget.visits - 1
    if limited and limits.closed_until(q, q.counts[RUNNING]) then break end -- the stored order is unchanged
    local n = STRAIGHT and lend_plainly(q, t, budget, place, taken, rival_tag, rival_name) or 0
    if n > 0 then
      budget.visits, place = budget.visits - n + 1, place + n
    else
      lend_next(q, t, budget, taken)
      place = #taken
    end
    if budget.counted then count_bytes(budget, taken) end
  end
  q.heap = nil
  close_order(q)
  drop_saved(q, 2 * wanted)
end

-- Of a record the policy is the third byte, and the moment since which the task can run may be said there, or not.
local NO_MOMENT = ('\0'):rep(8)
-- Lend `first` to `last` of what was taken, all started or all held: write the records of the plain ones and say that they began.
-- `lend_one` does the same for a task of the engine.
local function lend_each(taken, ids, first, last, started, lend_one)
  local m, begin, fate = #written, straight.own_begin(), pack(FATE, RUNNING, 0, 0, 0, 0, 0, 0, meta.token, started and now or 0, 0, 0, 0, 0)
  local own, old = sub(begin, 2, -5), nil -- of a record that a task had
  local hour, head, size, accepted, record, since, wait, t, q, s, g, mark, from, n
    = floor(now / 3600), nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, first, 0
  local function began(to) -- those of a queue that were accepted at once
    local many = to - from + 1
    if many == 0 then return end
    s[STARTED], s.waits[since], from = s[STARTED] + many, (s.waits[since] or 0) + many, to + 1
    rows_added(mark, many)
  end
  for i = first, last do
    local its = drawn[i]
    if not its then
      if g then began(i - 1) end
      t, g, from, ids[i] = nil, nil, i + 1, taken[i].id
      lend_one(taken[i], started)
    else
      local value, id, r = stored[i], taken[i], recorded[i]
      local since_then = r and sub(r, SINCE + 1, SINCE + 8)
      if not r or since_then == NO_MOMENT then since_then = sub(value, 1, 8) end
      if since_then ~= accepted then
        if g then began(i - 1) end
        accepted, since = since_then, unpacked('<d', since_then)
        wait = now - since
        if not started then fate, record = sub(fate, 1, SINCE) .. accepted .. sub(fate, SINCE + 9), nil end
      end
      if its ~= t and started then
        if its[QUEUE] ~= q or not g then
          if g then began(i - 1) end
          q = its[QUEUE]
          g, s = group_of('started', RUNNING, q.name, meta.token, 1, CALLER), stats.of(q)
          mark, n = last_mark(), #g
        end
        t = its
        if t[HOUR] ~= hour then stats.turn(t, hour) end
        local name = '\28' .. t[NAME]
        if name ~= mark then
          n = n + 1
          g[n], mark = name, name
        end
      end
      if r then
        if r ~= old or not record then
          old, head = r, nil
          record = sub(fate, 1, 2) .. sub(r, 3, 3) .. sub(fate, 4) .. sub(r, FATE_END + 1, FATE_END + 1) .. own
            .. sub(r, FATE_END + 3)
        end
      elseif heads[i] ~= head or #value ~= size or not record then
        old = nil
        head, size = heads[i], #value
        local body, trace = unpacked('<II', value, 13 + #head)
        record = fate .. begin .. head .. pack(SIZE, 0, body + trace, 0)
      end
      ids[i], written[m + 1], written[m + 2] = id, id, record
      m = m + 2
      if started then
        n = n + 1
        g[n], t[HOUR + STARTED] = id, t[HOUR + STARTED] + 1
        if wait > t[WAITED] then t[WAITED] = wait end
      end
    end
  end
  if g then began(last) end
end

function lend_straight(taken, ids, start, lend_one)
  lend_each(taken, ids, 1, start, true, lend_one)
  lend_each(taken, ids, start + 1, #taken, false, lend_one)
end

writers[#writers + 1] = function()
  local pops, n = {}, 0
  for i = 1, count do
    local cut = cuts[i]
    if cut and cut > 0 then
      pops[n + 1], pops[n + 2] = keys[i], cut
      n = n + 2
    end
  end
  pop_all(pops)
end
after[#after + 1] = function()
  drawn, stored, heads, entries, messages, records, recorded, list, heap, moved = nil, nil, nil, nil, nil, nil, nil, nil, nil, nil
end
