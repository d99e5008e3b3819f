-- Fast path (skip it on a first reading, see fast_path/enqueue.lua): plain ends: in whole calls, and among others.

-- @part read_ends
-- Plain ends, on the straight way of exchange (fast_path/exchange.exchange_straight).
-- What settle.settle and fast_path/ends.plain_ends do for them. Records are read and written as texts; those that
-- are alike and stand side by side go together. Nothing is written. Reads the runs of ARGV, see settle.settle.
local NEVER_BEGUN, FIRST_LIFE, NONE = ('\0'):rep(24), ('\0'):rep(4), {} -- NONE: a list that nobody writes to

-- The ids that are settled, by run of ARGV; false if there are too many, one is no usual end, or an id comes twice.
function straight.read_ends(x, from, count)
  local i, seen, ids, runs, run_ends, times, n = from, nil, {}, {}, {}, nil, 0
  for r = 1, count do
    if ARGV[i] ~= 'P' then return false end
    local step, size = ARGV[i + 2] == 'R' and 2 or 1, tonumber(ARGV[i + 3])
    if n + size > WHOLE then return false end
    local took = { unpacked('<' .. ('d'):rep(size), ARGV[i + 4]) }
    if n == 0 then times = took else
      for each = 1, size do times[n + each] = took[each] end
    end
    if not seen and n + size > 1 then
      seen = {}
      if n == 1 then seen[ids[1]] = true end
    end
    for at = i + 5, i + 4 + step * size, step do
      local id = ARGV[at]
      if seen then
        if seen[id] then return false end
        seen[id] = true
      end
      n = n + 1
      ids[n] = id
    end
    runs[r], run_ends[r] = i, n
    i = i + 5 + step * size
  end
  x.ids, x.runs, x.run_ends, x.times, x.n = ids, runs, run_ends, times, n
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
function straight.read_owners(x, known)
  local ids, n, run_ends, names, begin = x.ids, x.n, x.run_ends, x.names, x.begin
  local records, firsts, openings, owners, tenants, sizes = call('HMGET', prefix .. 'records', unpack(ids)), {}, {}, {}, {}, {}
  local to, last, its, opening, tail, live, g, r, run_to = FATE_END + #begin, nil, nil, nil, nil, nil, 0, 0, 0
  local head = to + 3
  for i = 1, n do
    local record = records[i]
    if i > run_to then
      r = r + 1
      run_to, last, its = run_ends[r], nil, nil
    end
    if record ~= last then
      if not record then return false end
      last = record
      local begins = sub(record, 1, to)
      if begins ~= its then
        its, opening = begins, opening_of(begins, begin, x.runs[r])
        if not opening then return false end
        opening.base = r > 1 and run_ends[r - 1] or 0
      end
      -- Queue, tenant, level, which is a digit, and what is behind it. A pattern would cost twice as much.
      local queue_end = find(record, SEP, head, true)
      local tenant_end = find(record, SEP, queue_end + 1, true)
      local queue, tenant, ends = sub(record, head, queue_end - 1), sub(record, queue_end + 1, tenant_end - 1), sub(record, tenant_end + 3)
      if ends ~= tail then
        local kind = kind_of(sub(ends, 1, -1 - SIZE_LENGTH))
        if kind.limited or kind.flow or sub(ends, -SIZE_LENGTH, -9) ~= FIRST_LIFE then return false end
        tail, live = ends, COUNTED + unpacked('<I', ends, #ends - 7)
      end
      if not known[queue] then names[#names + 1], known[queue] = queue, true end
      g = g + 1
      firsts[g], openings[g], owners[g], tenants[g], sizes[g] = i, opening, queue, tenant, live
    end
  end
  firsts[g + 1] = n + 1
  x.groups, x.records, x.firsts, x.openings, x.owners, x.tenants, x.sizes = g, records, firsts, openings, owners, tenants, sizes
  return true
end

-- What stats.stats counts of a queue that changes.
function straight.changing(q)
  if q.tail == '' then q.tail = sub(q.stored, q.s[Q_TAIL]) end
  return q.stats or stats.of(q)
end

-- Of what is settled, those that were only held begin before one ends. What is said of a tenant in x.rows (see events.events) is noted
-- in x.texts, since it is said again when they end.
local function begin_held(x)
  local openings, firsts, owners, tenants, ids, rows, texts, m = x.openings, x.firsts, x.owners, x.tenants, x.ids, x.rows, x.texts, x.m
  local its, name, q, light, counted, took, teller = nil, nil, nil, nil, nil, nil, nil
  for g = 1, x.groups do
    local opening = openings[g]
    if opening.held then
      local first, last, tenant = firsts[g], firsts[g + 1] - 1, tenants[g]
      local size, text = last + 1 - first, first == last and ids[first] or concat(ids, SEP, first, last)
      if opening ~= its or owners[g] ~= name then
        its, name, teller = opening, owners[g], nil
        q = x.queues[name]
        light, counted, took = q.light, straight.changing(q), now - its.since
        local head = 'started\0314\031' .. name .. SEP .. its.token .. ARGV[2]
        if head ~= x.row_head then
          m = m + 1
          rows[m], x.row_head = x.row_head and '\30' .. head or head, head
        else
          teller = x.row_tenant
        end
      end
      local l = light[tenant]
      counted[STARTED], counted.waits[its.since] = counted[STARTED] + size, (counted.waits[its.since] or 0) + size
      if l then
        l[L_STARTED] = l[L_STARTED] + size
        if took > l[L_WAITED] then l[L_WAITED] = took end
      else
        local t = q.tenants[tenant]
        if not t or t[HOUR] ~= x.hour then return false end
        t[HOUR + STARTED] = t[HOUR + STARTED] + size
        if took > t[WAITED] then t[WAITED] = took end
      end
      m = m + 1
      if tenant == teller then rows[m] = SEP .. text else
        text = '\31\28' .. tenant .. SEP .. text
        rows[m], texts[g], teller = text, text, tenant
      end
      x.row_tenant = teller
    end
  end
  x.m = m
  return true
end

-- `from` to `to` of what is settled are of one queue.
local function count_ends(q, times, from, to)
  local s, counted, ended = q.s, q.stats, to + 1 - from
  s[Q_COUNT + RUNNING], s[Q_COUNT + COMPLETED], q.ended = s[Q_COUNT + RUNNING] - ended, s[Q_COUNT + COMPLETED] + ended, q.ended + ended
  counted[COMPLETED - ENDS] = counted[COMPLETED - ENDS] + ended
  stats.times(counted, H_RUN, times, from, to, 1)
end

-- Write the results of tasks `first` to `last`, and their records, which begin like this. Returns how much the results are.
local function keep_results(x, q, its, begins, first, last)
  local list, bytes, ids, written, w = q.results or {}, 0, x.ids, x.written, x.w
  q.results = list
  for i = first, last do
    local id, result = ids[i], ARGV[its.run + 4 + 2 * (i - its.base)]
    bytes, written[w + 1], written[w + 2] = bytes + #result, id, begins .. pack('<I', #result)
    list[#list + 1], list[#list + 2], w = id, result, w + 2
  end
  x.w = w
  return bytes
end

-- End what is settled: records and counts as they will be. False if there is more to one of them.
local function end_all(x)
  local ids, hour, openings, firsts, owners, tenants, sizes, records, written
    = x.ids, x.hour, x.openings, x.firsts, x.owners, x.tenants, x.sizes, x.records, x.written
  local name, q, s, cache, light, till, opening, fate, head, from, kept, large, large_bytes
    = nil, nil, nil, nil, nil, nil, nil, nil, nil, 1, nil, nil, nil
  local rows, texts, m, w, teller = x.rows, x.texts, x.m, x.w, nil
  for g = 1, x.groups do
    local its, first, last = openings[g], firsts[g], firsts[g + 1] - 1
    if owners[g] ~= name then
      if q then count_ends(q, x.times, from, first - 1) end
      name, from, opening = owners[g], first, nil
      q = x.queues[name]
      s, till, cache, light, kept, large, large_bytes
        = q.s, now + q.conf.keep, q.tenants, q.light, q.kept, q.conf.count / OWN, q.conf.bytes / OWN
      straight.changing(q)
      if till < s[Q_UNTIL] or s[Q_LOOK] <= now + LATER or till < s[Q_LOOK] then return false end -- see none_is_over in retention_trim.trim
      s[Q_UNTIL] = till
    end
    if its ~= opening then
      opening, fate, head = its, its.fate .. pack('<dd', now, till), 'completed\0316\031' .. name .. SEP .. its.token
      if head ~= x.row_head then
        m = m + 1
        rows[m], x.row_head, teller = x.row_head and '\30' .. head or head, head, nil
      end
    end
    local name_of, size, record = tenants[g], last + 1 - first, records[first]
    local l = light[name_of]
    local t = not l and cache[name_of]
    if not l and (not t or t[STATUS] == PARKED or t[HOUR] ~= hour or t[OWNS] >= DEAD_BIT) then return false end
    local live = size * sizes[g]
    local done = live
    if its.results then
      x.w = w
      done = live + keep_results(x, q, its, fate .. sub(record, FATE_END + 1, -5), first, last)
      w = x.w
    else
      record = fate .. sub(record, FATE_END + 1)
      for i = first, last do
        written[w + 1], written[w + 2] = ids[i], record
        w = w + 2
      end
    end
    s[Q_DONE] = s[Q_DONE] + done
    if l then
      local count, bytes, before = l[L_COMPLETED] + size, l[L_DONE] + done, #kept + 1 - first
      l[L_RUNNING], l[L_COMPLETED], l[L_HOUR], l[L_DONE], l[L_LIVE] = l[L_RUNNING] - size, count, l[L_HOUR] + size, bytes, l[L_LIVE] - live
      if count >= large or bytes >= large_bytes then q.homeless = true end -- from now on it has an order of its own
      for i = first, last do kept[before + i] = ids[i] end
    else
      local count, bytes = t[COUNT + COMPLETED], t[DONE_BYTES]
      t[COUNT + RUNNING], t[COUNT + COMPLETED], t[HOUR + COMPLETED - ENDS], t[CHANGED]
        = t[COUNT + RUNNING] - size, count + size, t[HOUR + COMPLETED - ENDS] + size, true
      t[LIVE_BYTES], t[DONE_BYTES] = t[LIVE_BYTES] - live, bytes + done
      straight.keep(q, t, ids, first, last, count, bytes)
    end
    m = m + 1
    if name_of == teller then rows[m] = SEP .. (first == last and ids[first] or concat(ids, SEP, first, last))
    else rows[m], teller = texts[g] or '\31\28' .. name_of .. SEP .. (first == last and ids[first] or concat(ids, SEP, first, last)), name_of end
  end
  x.m, x.w, x.row_tenant = m, w, teller
  count_ends(q, x.times, from, x.n)
  return true
end

-- End what is settled, and make room for it. False if that is for the engine.
function straight.settle(x)
  for _, q in pairs(x.queues) do
    if q.ending or q.ready and q.ready[1] then straight.open_light(q, q.ending or NONE, q.ready or NONE) end
  end
  if x.n == 0 then return true end
  x.texts = {}
  if not begin_held(x) or not end_all(x) then return false end
  local all = x.ties and { unpack(x.ids) }
  for _, q in pairs(x.queues) do
    if q.ended > 0 and (q.homeless or not straight.make_room(q)) then return false end
    for i = 1, all and q.forgotten and #q.forgotten or 0 do all[#all + 1] = q.forgotten[i] end
  end
  if not x.ties then return true end
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
local function unique_of(r)
  local hold, caller = r:byte(FATE_END + 1), sub(straight.own_begin(), 2, -5)
  local at = FATE_END + 2 + #caller -- of the key
  if hold >= MOVED or sub(r, FATE_END + 2, at - 1) ~= caller then return nil end
  local low, high = r:byte(at, at + 1)
  local key_end = at + 1 + low + 256 * high
  if sub(r, key_end + 1, key_end + 2) ~= NOTHING then return nil end -- a reason
  return hold, sub(r, at + 2, key_end), key_end + 5
end

local OWNER = '^([^\31]*)\31([^\31]*)\31%d\31()'

-- Find those of the run at `i`, behind `n` others, and say in `codes` that they are applied.
function straight.find_plain(plain, i, first, results, count, n, ids, records, codes)
  local firsts, lasts, queues_of, tenants, fates, runs, names
    = plain.firsts, plain.lasts, plain.queues, plain.tenants, plain.fates, plain.runs, plain.names
  local token, m, total, begin = ARGV[i + 1], plain.count, plain.total, straight.own_begin()
  local run = { number = tonumber(token), results = results, base = n, first = first,
    times = { unpacked('<' .. ('d'):rep(count), ARGV[i + 4]) } }
  local begin_to, last, open, opening, f, fits = FATE_END + #begin, nil, false, nil, nil, false
  local q, tenant, told, kind, list, key -- of the last one
  for k = n + 1, n + count do
    local r = records[k]
    if r ~= last then
      last, open = r, false
      if not r then
        q = nil
      else
        local its, head, hold = sub(r, 1, begin_to), begin_to + 3, nil
        key = nil
        if its ~= opening then
          f = shelves.fate_of(r)
          opening, fits = its, f.untouched and f.token == token
          if fits and sub(its, FATE_END + 1) ~= begin then
            opening, hold, key, head = nil, unique_of(r)
            fits = hold ~= nil
          end
        end
        if not fits then q = nil else
          local queue, name, rest = match(r, OWNER, head)
          if not q or q.name ~= queue then
            q = queues[queue] or read_queue(queue, true)
            list = names[q] or {}
            names[q] = list
          end
          rest, tenant = sub(r, rest, -1 - SIZE_LENGTH), name
          if rest ~= told then told, kind = rest, kind_of(rest) end
          if kind.limited or q.charge ~= 0 then q = nil end
          key = key and hold < 3 and name .. SEP .. key
        end
      end
    end
    local ties = tied[ids[k]]
    if not q or ties and ties ~= 'd' then
      open = false
    else
      if ties then plain.parents[k], plain.children = true, true end
      if key then plain.keys[#plain.keys + 1], plain.kept[k] = key, key end
      codes[k], total = 'a', total + 1
      if not open then
        m, open = m + 1, true
        firsts[m], queues_of[m], tenants[m], fates[m], runs[m], list[#list + 1] = k, q, tenant, f, run, tenant
      end
      lasts[m] = k
      if kind.flow then plain.flows[#plain.flows + 1] = kind end
    end
  end
  plain.count, plain.total = m, total
end

-- Write the results of tasks `first` to `last`, and their records, which begin like this. Returns how much the results are.
local function write_results(run, rest, ids, first, last)
  local m, bytes = #written, 0
  for n = first, last do
    local id, result = ids[n], ARGV[run.first + 2 * (n - run.base) - 1]
    local ends = rest .. pack('<I', #result)
    bytes = bytes + #result
    write_part(id, 2, result)
    written[m + 1], written[m + 2], latest[id] = id, ends, ends
    m = m + 2
  end
  return bytes
end

-- `n` plain ends of a queue came behind each other, ids `from` to `to` of a run.
local function count_ends(q, run, ids, from, to)
  local n, s, counts = to - from + 1, stats.of(q), q.counts
  counts[RUNNING], counts[COMPLETED] = counts[RUNNING] - n, counts[COMPLETED] + n
  s[COMPLETED - ENDS] = s[COMPLETED - ENDS] + n
  ended[q.name], q.changed = (ended[q.name] or 0) + n, true
  stats.times(s, H_RUN, run.times, from - run.base, to - run.base, 1)
  leases.end_loans(CALLER, run.number, ids, from, to)
  if (q.concurrency >= 0 or q.rate > 0) and q.weight > 0 then rung[q.name] = q end
end

-- Of the groups from there to there, those that were only held begin before one ends.
local function begin_held(plain, ids, group, last_group)
  for i = group, last_group do
    local f = plain.fates[i]
    if f.held then
      local q, first, last = plain.queues[i], plain.firsts[i], plain.lasts[i]
      local s, t, n = stats.of(q), q.tenants[plain.tenants[i]], last - first + 1
      s[STARTED], s.waits[f.since] = s[STARTED] + n, (s.waits[f.since] or 0) + n
      if t[HOUR] ~= hour then stats.turn(t, hour) end
      t[HOUR + STARTED] = t[HOUR + STARTED] + n
      if now - f.since > t[WAITED] then t[WAITED] = now - f.since end
      add_rows(group_of('started', RUNNING, q.name, f.number, f.attempt, CALLER), '\28' .. t[NAME], ids, first, last)
    end
  end
end

-- End the groups from there to there.
function straight.end_straight(plain, ids, records, group, last_group)
  for q, list in pairs(plain.names) do make_tenants(q, list) end
  if #plain.keys > 0 then unique.load_holders(plain.keys) end
  plain.names, plain.keys = {}, {}
  begin_held(plain, ids, group, last_group)
  local keys, children, parents = plain.kept, plain.children, plain.parents
  local firsts, lasts, tenants, fates, queues_of, runs = plain.firsts, plain.lasts, plain.tenants, plain.fates, plain.queues, plain.runs
  local q, run, from, to, m = nil, nil, 1, 0, #written -- the same queue and run from there to there
  local f, begin, tail, life, each, room, room_bytes, cache, kept, till, g, mark, rows, n_rows
  for i = group, last_group do
    local first, last = firsts[i], lasts[i]
    local r, n = records[first], last - first + 1
    if queues_of[i] ~= q or runs[i] ~= run or first ~= to + 1 then
      if q then count_ends(q, run, ids, from, to) end
      q, run, from, f = queues_of[i], runs[i], first, nil
      room, room_bytes, cache = q.keep_count / OWN, q.keep_bytes / OWN, q.tenants
      kept, till = shelves.list_of_all(q)
    end
    to = last
    if fates[i] ~= f then
      f = fates[i]
      begin = shelves.completed_fate(f, q, run.results)
      if g then rows_added(mark, n_rows) end
      g = group_of('completed', COMPLETED, q.name, f.number, f.attempt, '')
      mark, n_rows, rows = last_mark(), 0, #g
    end
    local its = sub(r, -SIZE_LENGTH)
    if its ~= tail then
      local size
      tail, life, size = its, unpacked(SIZE, its)
      each = COUNTED + size
    end
    local t, live = cache[tenants[i]], n * each
    local done = live
    t[COUNT + RUNNING], t[COUNT + COMPLETED], t[CHANGED] = t[COUNT + RUNNING] - n, t[COUNT + COMPLETED] + n, true
    local name = '\28' .. t[NAME]
    if name ~= mark then
      rows = rows + 1
      g[rows], mark = name, name
    end
    n_rows = n_rows + n
    if run.results then
      done = live + write_results(run, begin .. sub(r, FATE_END + 1, -5), ids, first, last)
      m = #written
    else
      local ends = begin .. sub(r, FATE_END + 1)
      for k = first, last do
        local id = ids[k]
        written[m + 1], written[m + 2], latest[id] = id, ends, ends
        m = m + 2
      end
    end
    if t[HOUR] ~= hour then stats.turn(t, hour) end
    t[LIVE_BYTES], t[DONE_BYTES], q.done_bytes = t[LIVE_BYTES] - live, t[DONE_BYTES] + done, q.done_bytes + done
    t[HOUR + COMPLETED - ENDS] = t[HOUR + COMPLETED - ENDS] + n
    if t[COUNT + COMPLETED] + t[COUNT + CANCELLED] >= room or t[DONE_BYTES] >= room_bytes then
      shelves.keep_plainly(t, ids, first, last, life, done)
    elseif life > 0 or not kept then
      shelves.keep_of_all(q, ids, first, last, life)
    else
      local before = #kept + 1 - first
      q.kept_until = till
      for k = first, last do kept[before + k] = ids[k] end
    end
    local before_rows = rows + 1 - first
    for k = first, last do g[before_rows + k] = ids[k] end
    rows = rows + n
    for k = keys[first] and first or last + 1, last do unique.free_key(keys[k], ids[k]) end
    for k = children and first or last + 1, last do if parents[k] then dependency.add_job(ids[k], life, COMPLETED, f.generation) end end
    if t[STATUS] == PARKED then leases.has_room_again(t) end
  end
  if g then rows_added(mark, n_rows) end
  if q then count_ends(q, run, ids, from, to) end
end

-- Members of flows have ended.
function straight.count_flows(plain)
  for i = 1, #plain.flows do flows.count(plain.flows[i], COMPLETED, 1) end
end
