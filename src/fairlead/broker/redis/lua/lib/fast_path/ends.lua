-- Fast path (see enqueue.lua): plain ends: in whole calls, and among others.

-- @part read_ends
-- Plain ends, on the straight way of exchange (fast_path/exchange.exchange_straight).
-- What settle.settle and fast_path/ends.plain_ends do for them. Records are read and written as texts; those that
-- are alike and stand side by side go together. Nothing is written. Reads the runs of ARGV, see settle.settle.
local NEVER_BEGUN, FIRST_LIFE, NONE = ('\0'):rep(24), ('\0'):rep(4), {} -- NONE: a list that nobody writes to

-- The ids that are settled, by run of ARGV; false if there are too many, one is no usual end, or an id comes twice.
function straight.read_ends(exchange, from, count)
  local arg, seen, ids, runs, run_ends, times, total = from, nil, {}, {}, {}, nil, 0
  for run = 1, count do
    if ARGV[arg] ~= 'P' then return false end
    local step, size = ARGV[arg + 2] == 'R' and 2 or 1, tonumber(ARGV[arg + 3])
    if total + size > WHOLE then return false end
    local took = { unpacked('<' .. ('d'):rep(size), ARGV[arg + 4]) }
    if total == 0 then times = took else
      for each = 1, size do times[total + each] = took[each] end
    end
    if not seen and total + size > 1 then
      seen = {}
      if total == 1 then seen[ids[1]] = true end
    end
    for at = arg + 5, arg + 4 + step * size, step do
      local id = ARGV[at]
      if seen then
        if seen[id] then return false end
        seen[id] = true
      end
      total = total + 1
      ids[total] = id
    end
    runs[run], run_ends[run] = arg, total
    arg = arg + 5 + step * size
  end
  exchange.ids, exchange.runs, exchange.run_ends, exchange.times, exchange.settled = ids, runs, run_ends, times, total
  return true
end

-- What records say that begin like this; nil if they are not on loan to the caller under the token of a run, or something has
-- happened to their tasks: see fate_of.
local function opening_of(begins, begin, run)
  if sub(begins, FATE_END + 1) ~= begin or sub(begins, 1, 2) ~= '\4\0' or sub(begins, 8, 10) ~= '\0\0\0' then return nil end
  local attempts, number, begun, since, deadline = unpacked('<I', begins, 4), unpacked('<dddd', begins, 13)
  if number ~= tonumber(ARGV[run + 1]) or deadline ~= 0 or (begun == 0) == (since == 0) then return nil end
  local results = ARGV[run + 2] == 'R'
  return { held = begun == 0, since = since, results = results, run = run, base = 0, token = ARGV[run + 1] .. SEP .. attempts + 1 .. SEP,
    fate = (results and '\6\2' or '\6\0') .. sub(begins, 3, 3) .. pack('<I', attempts + 1) .. sub(begins, 8, 20) .. NEVER_BEGUN }
end

-- Whose they are, by their records, in groups. False if one is not on loan to the caller, or is no plain task.
function straight.read_owners(exchange, known)
  local ids, total, run_ends, names, begin = exchange.ids, exchange.settled, exchange.run_ends, exchange.names, exchange.begin
  local records, firsts, tenants, changes, openings, owners, sizes = call('HMGET', prefix .. 'records', unpack(ids)), {}, {}, {}, {}, {}, {}
  local to, last, begins, opening, tail, tail_size, live, group, run, run_to = FATE_END + #begin, nil, nil, nil, nil, nil, nil, 0, 0, 0
  local head, queue, queue_text, only, changed = to + 3, nil, nil, nil, false
  for i = 1, total do
    local record = records[i]
    if i > run_to then
      run = run + 1
      run_to, last, begins = run_ends[run], nil, nil
    end
    if record ~= last then
      if not record then return false end
      last = record
      -- To find what was found in the record before costs less than to cut it out and compare.
      if not begins or find(record, begins, 1, true) ~= 1 then
        begins = sub(record, 1, to)
        opening = opening_of(begins, begin, exchange.runs[run])
        if not opening then return false end
        opening.base, changed = run > 1 and run_ends[run - 1] or 0, true
      end
      -- Queue, tenant, level, which is a digit, and what is behind it. A pattern would cost twice as much.
      if not queue or find(record, queue_text, head, true) ~= head then
        queue = sub(record, head, find(record, SEP, head, true) - 1)
        queue_text, only, changed = queue .. SEP, not only and queue, true
        if not known[queue] then names[#names + 1], known[queue] = queue, true end
      end
      local tenant_at = head + #queue_text
      local tenant_end = find(record, SEP, tenant_at, true)
      if #record - tenant_end ~= tail_size or not find(record, tail, tenant_end + 3, true) then
        tail, tail_size = sub(record, tenant_end + 3), #record - tenant_end
        local kind = kind_of(sub(tail, 1, -1 - SIZE_LENGTH))
        if kind.limited or kind.flow or sub(tail, -SIZE_LENGTH, -9) ~= FIRST_LIFE then return false end
        live, changed = COUNTED + unpacked('<I', tail, #tail - 7), true
      end
      group = group + 1
      firsts[group] = i
      tenants[group] = sub(record, tenant_at, tenant_end - 1)
      if changed then
        local span = #changes + 1
        changes[span], openings[span], owners[span], sizes[span], changed = group, opening, queue, live, false
      end
    end
  end
  firsts[group + 1], changes[#changes + 1] = total + 1, group + 1
  exchange.groups, exchange.records, exchange.firsts, exchange.changes, exchange.openings, exchange.owners, exchange.tenants, exchange.sizes, exchange.owner
    = group, records, firsts, changes, openings, owners, tenants, sizes, only
  return true
end

-- What stats.stats counts of a queue that changes.
function straight.changing(queue)
  if queue.tail == '' then queue.tail = sub(queue.stored, queue.numbers[Q_TAIL]) end
  return queue.stats or stats.of(queue)
end

-- `from` to `to` of what is settled are of one queue, and are so many bytes.
local function count_ends(queue, times, from, to, bytes)
  local numbers, counted, ended = queue.numbers, queue.stats, to + 1 - from
  numbers[Q_COUNT + RUNNING], numbers[Q_COUNT + COMPLETED], numbers[Q_DONE], queue.ended
    = numbers[Q_COUNT + RUNNING] - ended, numbers[Q_COUNT + COMPLETED] + ended, numbers[Q_DONE] + bytes, queue.ended + ended
  counted[COMPLETED - ENDS] = counted[COMPLETED - ENDS] + ended
  stats.times(counted, H_RUN, times, from, to, 1)
end

-- Of a queue whose tenants have no orders of their own, what ended is kept in the order in which it was settled.
local function keep_in_turn(queue, ids, from, to)
  if from and from <= to then queue.kept = { unpack(ids, from, to) } end
end

-- So many of a queue began that were only held.
local function count_begun(queue, opening, begun)
  local counted = queue.stats
  counted[STARTED], counted.waits[opening.since] = counted[STARTED] + begun, (counted.waits[opening.since] or 0) + begun
end

-- Write the results of tasks `first` to `last`, and their records, which begin like this. Returns how much the results are.
local function keep_results(exchange, queue, opening, begins, first, last)
  local list, bytes, ids, written, written_size = queue.results or {}, 0, exchange.ids, exchange.written, exchange.written_size
  queue.results = list
  for i = first, last do
    local id, result = ids[i], ARGV[opening.run + 4 + 2 * (i - opening.base)]
    bytes, written[written_size + 1], written[written_size + 2] = bytes + #result, id, begins .. pack('<I', #result)
    list[#list + 1], list[#list + 2], written_size = id, result, written_size + 2
  end
  exchange.written_size = written_size
  return bytes
end

-- End what is settled: records and counts as they will be. Those that were only held begin before one ends, so what is said of them in
-- exchange.rows (see events.events) stands before what is said of the ends. False if there is more to one of them.
local function end_all(exchange)
  local ids, hour, firsts, tenants, records, written, changes, openings, owners, sizes
    = exchange.ids, exchange.hour, exchange.firsts, exchange.tenants, exchange.records, exchange.written, exchange.changes,
    exchange.openings, exchange.owners, exchange.sizes
  local starts, waits, ends, lives = straight.starts, straight.waits, straight.ends, straight.lives
  local queue_name, queue, numbers, cache, visits, till, opening, fate, from, kept, kept_size = nil, nil, nil, nil, nil, nil, nil, nil, 1, nil, 0
  local rows, rows_size, begun, took, begun_tenant = exchange.rows, exchange.rows_size, 0, nil, nil
  local done_rows, done_size, done_head, done_tenant, written_size = {}, 0, nil, nil, exchange.written_size
  local all_done, in_turn = 0, nil -- in_turn: the first of a queue, if all since then are kept and stand in no list
  local span, change, own_size = 0, 1, nil
  for group = 1, exchange.groups do
    local first, last = firsts[group], firsts[group + 1] - 1
    if group == change then -- of another queue, another loan or another size
      span = span + 1
      local own_opening = openings[span]
      own_size, change = sizes[span], changes[span + 1]
      if owners[span] ~= queue_name then
        if queue then
          count_ends(queue, exchange.times, from, first - 1, all_done)
          keep_in_turn(queue, ids, in_turn, first - 1)
          if begun > 0 then count_begun(queue, opening, begun) end
        end
        queue_name, from, opening, all_done, begun = owners[span], first, nil, 0, 0
        queue = exchange.queues[queue_name]
        numbers, till, cache, visits, kept = queue.numbers, now + queue.conf.keep, queue.tenants, queue.visits, queue.kept
        kept_size = #kept
        in_turn = kept_size == 0 and first
        straight.changing(queue)
        if till < numbers[Q_UNTIL] or numbers[Q_LOOK] <= now + LATER or till < numbers[Q_LOOK] then
          return false end -- see none_is_over in retention_trim.trim
        numbers[Q_UNTIL] = till
      end
      if own_opening ~= opening then
        if begun > 0 then count_begun(queue, opening, begun) end
        opening, fate, begun, took = own_opening, own_opening.fate .. pack('<dd', now, till), 0, nil
        local done = 'completed\0316\031' .. queue_name .. SEP .. opening.token
        if done ~= done_head then
          done_size, done_tenant = done_size + 1, nil
          done_rows[done_size], done_head = done_head and '\30' .. done or done, done
        end
        if opening.held then
          local head = 'started\0314\031' .. queue_name .. SEP .. opening.token .. ARGV[2]
          if head ~= exchange.row_head then
            rows_size, begun_tenant = rows_size + 1, nil
            rows[rows_size], exchange.row_head = exchange.row_head and '\30' .. head or head, head
          end
          took = now - opening.since
        end
      end
    end
    local tenant_name, size, record = tenants[group], last + 1 - first, records[first]
    local visit = visits[tenant_name]
    local tenant = not visit and cache[tenant_name]
    if not visit and (not tenant or tenant[STATUS] == PARKED or tenant[HOUR] ~= hour or tenant[OWNS] >= DEAD_BIT) then
      return false
    end
    local single, row = first == last, nil
    local text = single and ids[first] or concat(ids, SEP, first, last)
    if tenant_name ~= done_tenant then row, done_tenant = '\31\28' .. tenant_name .. SEP .. text, tenant_name end
    done_size = done_size + 1
    done_rows[done_size] = row or SEP .. text
    if took then
      begun, rows_size = begun + size, rows_size + 1
      if tenant_name == begun_tenant then rows[rows_size] = SEP .. text
      else rows[rows_size], begun_tenant = row or '\31\28' .. tenant_name .. SEP .. text, tenant_name end
      if visit then
        starts[visit] = starts[visit] + size
        if took > waits[visit] then waits[visit] = took end
      else
        tenant[HOUR + STARTED] = tenant[HOUR + STARTED] + size
        if took > tenant[WAITED] then tenant[WAITED] = took end
      end
    end
    local live = size * own_size
    local done = live
    if opening.results then
      exchange.written_size = written_size
      done = live + keep_results(exchange, queue, opening, fate .. sub(record, FATE_END + 1, -5), first, last)
      written_size = exchange.written_size
    else
      record = fate .. sub(record, FATE_END + 1)
      if single then
        written[written_size + 1] = text
        written_size = written_size + 2
        written[written_size] = record
      else
        for i = first, last do
          written[written_size + 1], written[written_size + 2] = ids[i], record
          written_size = written_size + 2
        end
      end
    end
    all_done = all_done + done
    if visit then
      ends[visit] = ends[visit] + size
      lives[visit] = lives[visit] + live
      if done > live then straight.add_results(visit, done - live) end
      if not in_turn then
        for i = first, last do
          kept_size = kept_size + 1
          kept[kept_size] = ids[i]
        end
      end
    else
      for i = in_turn or first, first - 1 do kept[#kept + 1] = ids[i] end
      in_turn = nil
      local count, bytes = tenant[COUNT + COMPLETED], tenant[DONE_BYTES]
      tenant[COUNT + RUNNING], tenant[COUNT + COMPLETED], tenant[HOUR + COMPLETED - ENDS], tenant[CHANGED]
        = tenant[COUNT + RUNNING] - size, count + size, tenant[HOUR + COMPLETED - ENDS] + size, true
      tenant[LIVE_BYTES], tenant[DONE_BYTES] = tenant[LIVE_BYTES] - live, bytes + done
      straight.keep(queue, tenant, ids, first, last, count, bytes)
      kept_size = #kept
    end
  end
  rows[rows_size + 1] = (exchange.row_head and '\30' or '') .. concat(done_rows)
  exchange.rows_size, exchange.written_size, exchange.row_head, exchange.row_tenant = rows_size + 1, written_size, done_head, done_tenant
  count_ends(queue, exchange.times, from, exchange.settled, all_done)
  keep_in_turn(queue, ids, in_turn, exchange.settled)
  if begun > 0 then count_begun(queue, opening, begun) end
  return true
end

-- End what is settled, and make room for it. False if that is for the engine.
function straight.settle(exchange)
  for _, queue in pairs(exchange.queues) do
    if queue.ending or queue.ready and queue.ready[1] then straight.open_visits(queue, queue.ending or NONE, queue.ready or NONE, true) end
  end
  if exchange.settled == 0 then return true end
  if not end_all(exchange) then return false end
  local all = exchange.ties and { unpack(exchange.ids) }
  for _, queue in pairs(exchange.queues) do
    if queue.ended > 0 and (queue.homeless or not straight.make_room(queue)) then return false end
    for i = 1, all and queue.forgotten and #queue.forgotten or 0 do all[#all + 1] = queue.forgotten[i] end
  end
  if not straight.close_visits() then return false end
  if not exchange.ties then return true end
  local found = call('HMGET', prefix .. 'ties', unpack(all))
  for i = 1, #all do if found[i] then return false end end
  return true
end

-- @part plain_ends
-- Plain ends as they are stored, many at a time.
-- Plain is the end of a task that completed and was lent by one call with nothing having happened to it before, that
-- needs no limiter, and for which no client waits; it may have had a unique key, and others may depend on it. Works
-- on stored records; what is found out about one holds for those behind it that are the same. With STRAIGHT set to
-- false the engine ends them one by one (settle.settle), and every key and answer is the same:
-- tests/broker/redis/test_straight_exchange.py. Reads a run of ARGV, see settle.settle.
-- @share STRAIGHT straight
straight = straight or {}
STRAIGHT = true
local own, hour
begins[#begins + 1] = function()
  own, hour = nil, floor(now / 3600)
end

-- How SELF of a plain loan of this caller begins.
function straight.own_begin()
  if not own then own = '\0' .. string.char(#CALLER) .. CALLER .. '\0\0\0\0' end
  return own
end

-- The plain ends of a call, in groups that are alike: of each the first and the last among all ids, queue, tenant, fate, run.
function straight.plain_ends() return { count = 0, total = 0, firsts = {}, lasts = {}, queues = {}, tenants = {}, fates = {}, runs = {},
  names = {}, flows = {}, keys = {}, kept = {}, parents = {}, children = false } end

-- How SELF goes on if it has a unique key: its hold, its key, and where the head begins, or nothing if it is no plain loan of this
-- caller.
local NOTHING = '\0\0'
local function unique_of(record)
  local hold, caller = record:byte(FATE_END + 1), sub(straight.own_begin(), 2, -5)
  local at = FATE_END + 2 + #caller -- of the key
  if hold >= MOVED or sub(record, FATE_END + 2, at - 1) ~= caller then return nil end
  local low, high = record:byte(at, at + 1)
  local key_end = at + 1 + low + 256 * high
  if sub(record, key_end + 1, key_end + 2) ~= NOTHING then return nil end -- a reason
  return hold, sub(record, at + 2, key_end), key_end + 5
end

local OWNER = '^([^\31]*)\31([^\31]*)\31%d\31()'

-- Find those of the run at ARGV[arg], behind `done` others, and say in `codes` that they are applied.
function straight.find_plain(plain, arg, first, results, count, done, ids, records, codes)
  local firsts, lasts, queues_of, tenants, fates, runs, names
    = plain.firsts, plain.lasts, plain.queues, plain.tenants, plain.fates, plain.runs, plain.names
  local token, groups, total, begin = ARGV[arg + 1], plain.count, plain.total, straight.own_begin()
  local run = { number = tonumber(token), results = results, base = done, first = first,
    times = { unpacked('<' .. ('d'):rep(count), ARGV[arg + 4]) } }
  local begin_to, last, open, opening, fate, fits = FATE_END + #begin, nil, false, nil, nil, false
  local queue, tenant, last_rest, kind, list, key -- of the last one
  for place = done + 1, done + count do
    local record = records[place]
    if record ~= last then
      last, open = record, false
      if not record then
        queue = nil
      else
        local begins, head, hold = sub(record, 1, begin_to), begin_to + 3, nil
        key = nil
        if begins ~= opening then
          fate = shelves.fate_of(record)
          opening, fits = begins, fate.untouched and fate.token == token
          if fits and sub(begins, FATE_END + 1) ~= begin then
            opening, hold, key, head = nil, unique_of(record)
            fits = hold ~= nil
          end
        end
        if not fits then queue = nil else
          local queue_name, tenant_name, rest = match(record, OWNER, head)
          if not queue or queue.name ~= queue_name then
            queue = queues[queue_name] or read_queue(queue_name, true)
            list = names[queue] or {}
            names[queue] = list
          end
          rest, tenant = sub(record, rest, -1 - SIZE_LENGTH), tenant_name
          if rest ~= last_rest then last_rest, kind = rest, kind_of(rest) end
          if kind.limited or queue.charge ~= 0 then queue = nil end
          key = key and hold < 3 and tenant_name .. SEP .. key
        end
      end
    end
    local ties = tied[ids[place]]
    if not queue or ties and ties ~= 'd' then
      open = false
    else
      if ties then plain.parents[place], plain.children = true, true end
      if key then plain.keys[#plain.keys + 1], plain.kept[place] = key, key end
      codes[place], total = 'a', total + 1
      if not open then
        groups, open = groups + 1, true
        firsts[groups], queues_of[groups], tenants[groups], fates[groups], runs[groups], list[#list + 1]
          = place, queue, tenant, fate, run, tenant
      end
      lasts[groups] = place
      if kind.flow then plain.flows[#plain.flows + 1] = kind end
    end
  end
  plain.count, plain.total = groups, total
end

-- Write the results of tasks `first` to `last`, and their records, which begin like this. Returns how much the results are.
local function write_results(run, rest, ids, first, last)
  local written_size, bytes = #written, 0
  for place = first, last do
    local id, result = ids[place], ARGV[run.first + 2 * (place - run.base) - 1]
    local ends = rest .. pack('<I', #result)
    bytes = bytes + #result
    write_part(id, 2, result)
    written[written_size + 1], written[written_size + 2], latest[id] = id, ends, ends
    written_size = written_size + 2
  end
  return bytes
end

-- Ids `from` to `to` of a run are plain ends of a queue, one behind the other.
local function count_ends(queue, run, ids, from, to)
  local count, counters, counts = to - from + 1, stats.of(queue), queue.counts
  counts[RUNNING], counts[COMPLETED] = counts[RUNNING] - count, counts[COMPLETED] + count
  counters[COMPLETED - ENDS] = counters[COMPLETED - ENDS] + count
  ended[queue.name], queue.changed = (ended[queue.name] or 0) + count, true
  stats.times(counters, H_RUN, run.times, from - run.base, to - run.base, 1)
  leases.end_loans(CALLER, run.number, ids, from, to)
  if (queue.concurrency >= 0 or queue.rate > 0) and queue.weight > 0 then rung[queue.name] = queue end
end

-- Of the groups from there to there, those that were only held begin before one ends.
local function begin_held(plain, ids, group, last_group)
  for each = group, last_group do
    local fate = plain.fates[each]
    if fate.held then
      local queue, first, last = plain.queues[each], plain.firsts[each], plain.lasts[each]
      local counters, tenant, count = stats.of(queue), queue.tenants[plain.tenants[each]], last - first + 1
      counters[STARTED], counters.waits[fate.since] = counters[STARTED] + count, (counters.waits[fate.since] or 0) + count
      if tenant[HOUR] ~= hour then stats.turn(tenant, hour) end
      tenant[HOUR + STARTED] = tenant[HOUR + STARTED] + count
      if now - fate.since > tenant[WAITED] then tenant[WAITED] = now - fate.since end
      add_rows(group_of('started', RUNNING, queue.name, fate.number, fate.attempt, CALLER), '\28' .. tenant[NAME], ids, first, last)
    end
  end
end

-- End the groups from there to there.
function straight.end_straight(plain, ids, records, first_group, last_group)
  for queue, list in pairs(plain.names) do make_tenants(queue, list) end
  if #plain.keys > 0 then unique.load_holders(plain.keys) end
  plain.names, plain.keys = {}, {}
  begin_held(plain, ids, first_group, last_group)
  local keys, children, parents = plain.kept, plain.children, plain.parents
  local firsts, lasts, tenants, fates, queues_of, runs = plain.firsts, plain.lasts, plain.tenants, plain.fates, plain.queues, plain.runs
  local queue, run, from, to, written_size = nil, nil, 1, 0, #written -- the same queue and run from there to there
  local fate, begin, tail, life, each, room, room_bytes, cache, kept, till, event_group, mark, rows, n_rows
  for group = first_group, last_group do
    local first, last = firsts[group], lasts[group]
    local record, count = records[first], last - first + 1
    if queues_of[group] ~= queue or runs[group] ~= run or first ~= to + 1 then
      if queue then count_ends(queue, run, ids, from, to) end
      queue, run, from, fate = queues_of[group], runs[group], first, nil
      room, room_bytes, cache = queue.keep_count / OWN, queue.keep_bytes / OWN, queue.tenants
      kept, till = shelves.list_of_all(queue)
    end
    to = last
    if fates[group] ~= fate then
      fate = fates[group]
      begin = shelves.completed_fate(fate, queue, run.results)
      if event_group then rows_added(mark, n_rows) end
      event_group = group_of('completed', COMPLETED, queue.name, fate.number, fate.attempt, '')
      mark, n_rows, rows = last_mark(), 0, #event_group
    end
    local size_text = sub(record, -SIZE_LENGTH)
    if size_text ~= tail then
      local size
      tail, life, size = size_text, unpacked(SIZE, size_text)
      each = COUNTED + size
    end
    local tenant, live = cache[tenants[group]], count * each
    local done = live
    tenant[COUNT + RUNNING], tenant[COUNT + COMPLETED], tenant[CHANGED]
      = tenant[COUNT + RUNNING] - count, tenant[COUNT + COMPLETED] + count, true
    local name = '\28' .. tenant[NAME]
    if name ~= mark then
      rows = rows + 1
      event_group[rows], mark = name, name
    end
    n_rows = n_rows + count
    if run.results then
      done = live + write_results(run, begin .. sub(record, FATE_END + 1, -5), ids, first, last)
      written_size = #written
    else
      local ends = begin .. sub(record, FATE_END + 1)
      for place = first, last do
        local id = ids[place]
        written[written_size + 1], written[written_size + 2], latest[id] = id, ends, ends
        written_size = written_size + 2
      end
    end
    if tenant[HOUR] ~= hour then stats.turn(tenant, hour) end
    tenant[LIVE_BYTES], tenant[DONE_BYTES], queue.done_bytes = tenant[LIVE_BYTES] - live, tenant[DONE_BYTES] + done, queue.done_bytes + done
    tenant[HOUR + COMPLETED - ENDS] = tenant[HOUR + COMPLETED - ENDS] + count
    if tenant[COUNT + COMPLETED] + tenant[COUNT + CANCELLED] >= room or tenant[DONE_BYTES] >= room_bytes then
      shelves.keep_plainly(tenant, ids, first, last, life, done)
    elseif life > 0 or not kept then
      shelves.keep_of_all(queue, ids, first, last, life)
    else
      local before = #kept + 1 - first
      queue.kept_until = till
      for place = first, last do kept[before + place] = ids[place] end
    end
    local before_rows = rows + 1 - first
    for place = first, last do event_group[before_rows + place] = ids[place] end
    rows = rows + count
    for place = keys[first] and first or last + 1, last do unique.free_key(keys[place], ids[place]) end
    for place = children and first or last + 1, last do
      if parents[place] then dependency.add_job(ids[place], life, COMPLETED, fate.generation) end
    end
    if tenant[STATUS] == PARKED then leases.has_room_again(tenant) end
  end
  if event_group then rows_added(mark, n_rows) end
  if queue then count_ends(queue, run, ids, from, to) end
end

-- Members of flows have ended.
function straight.count_flows(plain)
  for i = 1, #plain.flows do flows.count(plain.flows[i], COMPLETED, 1) end
end
