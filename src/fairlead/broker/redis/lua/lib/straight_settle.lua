-- straight_settle: plain ends as they are stored, many at a time.
--
-- Plain is the end of a task that completed and was lent by one call with nothing having happened to it before, that needs
-- no limiter, and for which no client waits; it may have had a unique key, and others may depend on it. Works on stored records; what is found out about one holds for those behind it that
-- are the same. With STRAIGHT set to false the engine ends them one by one (lib/settle), and every key and answer is the
-- same: tests/broker/redis/test_straight_exchange.py. Reads KEYS[1] and a run of ARGV, see lib/settle. Returns nothing by
-- itself.
-- @share STRAIGHT
STRAIGHT = true
local own, hour
-- @each
own, hour = nil, floor(now / 3600)
-- @end

-- How SELF of a plain loan of this caller begins.
function own_begin()
  if not own then own = '\0' .. string.char(#CALLER) .. CALLER .. '\0\0\0\0' end
  return own
end

-- The plain ends of a call, in groups that are alike: of each the first and the last among all ids, queue, tenant, fate, run.
function plain_ends() return { count = 0, total = 0, firsts = {}, lasts = {}, queues = {}, tenants = {}, fates = {}, runs = {},
  names = {}, flows = {}, keys = {}, kept = {}, parents = {}, children = false } end

-- How SELF goes on if it has a unique key: its hold, its key, and where the head begins, or nothing if it is no plain loan of this
-- caller.
local NOTHING = '\0\0'
local function unique_of(r)
  local hold, caller = r:byte(FATE_END + 1), sub(own_begin(), 2, -5)
  local at = FATE_END + 2 + #caller -- of the key
  if hold >= MOVED or sub(r, FATE_END + 2, at - 1) ~= caller then return nil end
  local low, high = r:byte(at, at + 1)
  local key_end = at + 1 + low + 256 * high
  if sub(r, key_end + 1, key_end + 2) ~= NOTHING then return nil end -- a reason
  return hold, sub(r, at + 2, key_end), key_end + 5
end

local OWNER = '^([^\31]*)\31([^\31]*)\31%d\31()'

-- Find those of the run at `i`, behind `n` others, and say in `codes` that they are applied.
function find_plain(plain, i, first, results, count, n, ids, records, codes)
  local firsts, lasts, queues_of, tenants, fates, runs, names
    = plain.firsts, plain.lasts, plain.queues, plain.tenants, plain.fates, plain.runs, plain.names
  local token, m, total, begin = ARGV[i + 1], plain.count, plain.total, own_begin()
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
          f = fate_of(r)
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
  end_loans(CALLER, run.number, ids, from, to)
  if (q.concurrency >= 0 or q.rate > 0) and q.weight > 0 then rung[q.name] = q end
end

-- Some of a tenant ended that were only held: they began as well.
local function begin_held(t, f, n)
  local s = stats.of(t[QUEUE])
  s[STARTED], s.waits[f.since] = s[STARTED] + n, (s.waits[f.since] or 0) + n
  t[HOUR + STARTED] = t[HOUR + STARTED] + n
  if now - f.since > t[WAITED] then t[WAITED] = now - f.since end
end

-- End the groups from there to there.
function end_straight(plain, ids, records, group, last_group)
  for q, list in pairs(plain.names) do make_tenants(q, list) end
  if #plain.keys > 0 then load_holders(plain.keys) end
  plain.names, plain.keys = {}, {}
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
      begin = completed_fate(f, q, run.results)
      if g then rows_added(mark, n_rows) end
      g = not f.held and group_of('completed', COMPLETED, q.name, f.number, f.attempt, '')
      if g then mark, n_rows, rows = last_mark(), 0, #g end
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
    if g then
      local name = '\28' .. t[NAME]
      if name ~= mark then
        rows = rows + 1
        g[rows], mark = name, name
      end
      n_rows = n_rows + n
    end
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
    if g then
      local before = rows + 1 - first
      for k = first, last do g[before + k] = ids[k] end
      rows = rows + n
    else
      local name = '\28' .. t[NAME]
      begin_held(t, f, n)
      add_rows(group_of('started', RUNNING, q.name, f.number, f.attempt, CALLER), name, ids, first, last)
      add_rows(group_of('completed', COMPLETED, q.name, f.number, f.attempt, ''), name, ids, first, last)
    end
    for k = keys[first] and first or last + 1, last do free_key(keys[k], ids[k]) end
    for k = children and first or last + 1, last do if parents[k] then add_job(ids[k], life, COMPLETED) end end
    if t[STATUS] == PARKED then has_room_again(t) end
  end
  if g then rows_added(mark, n_rows) end
  if q then count_ends(q, run, ids, from, to) end
end

-- Members of flows have ended.
function count_flows(plain)
  for i = 1, #plain.flows do flows.count(plain.flows[i], COMPLETED, 1) end
end
