-- Fast path (see enqueue.lua): whole calls of plain ends.

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
        queue_text, only, changed = queue .. SEP, only == nil and queue, true
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
  exchange.groups, exchange.records, exchange.firsts, exchange.tenants, exchange.owner = group, records, firsts, tenants, only
  exchange.changes, exchange.openings, exchange.owners, exchange.sizes = changes, openings, owners, sizes
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
  local queue_name, queue, numbers, cache, visits, till, opening, fate, from, kept, kept_size
    = nil, nil, nil, nil, nil, nil, nil, nil, 1, nil, 0
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
