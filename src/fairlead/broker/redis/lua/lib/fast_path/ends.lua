-- Fast path (see enqueue.lua): plain ends, among others.

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
