-- plain_end: the short way for the usual end: completed, nothing special before or after.
--
-- Works on stored records; what is found out about one holds for those behind it that are the same.
-- Reads KEYS[1] and a run of ARGV, see lib/settle. Returns nothing by itself.
-- The tenant of such a task, what is the same for all of its call, how its record begins from now on, its
-- life and its size; nil: it goes the long way.
local function way_out(r, o, token, results)
  local f = fate_of(r)
  local q = queues[o.queue]
  if not (f.untouched and f.token == token and o.plain and o.incarnation == CALLER and q.charge == 0) then return nil end
  local life, size = unpacked(SIZE, r, #r - SIZE_LENGTH + 1)
  return q.tenants[o.tenant], f, completed_fate(f, q, results), life, size
end

-- The run times of one after the other are looked at together, as far as they are of one queue.
local span, from_run, to_run = nil, 0, 0
local function took(q, runs, first, last)
  if q == span and first == to_run + 1 then to_run = last return end
  if span then stats.times(span.stats, H_RUN, runs, from_run, to_run, 1) end
  span, from_run, to_run = q, first, last
end

-- Tasks `first` to `last` of `ids` ended alike.
local function end_alike(t, f, o, ids, first, last, life, size, bytes, runs, base)
  local n, q, d = last - first + 1, t[QUEUE], t[QUEUE].counts
  t[COUNT + RUNNING], t[COUNT + COMPLETED], t[CHANGED] = t[COUNT + RUNNING] - n, t[COUNT + COMPLETED] + n, true
  d[RUNNING], d[COMPLETED], q.changed = d[RUNNING] - n, d[COMPLETED] + n, true
  t[LIVE_BYTES] = t[LIVE_BYTES] - n * (COUNTED + size)
  bytes = n * COUNTED + bytes
  q.done_bytes, t[DONE_BYTES] = q.done_bytes + bytes, t[DONE_BYTES] + bytes
  ended[q.name] = (ended[q.name] or 0) + n
  shelves.keep_plainly(t, ids, first, last, life, bytes)
  stats.count(t, COMPLETED - ENDS, n)
  took(q, runs, first - base, last - base)
  if f.held then
    stats.began(t, f.since, n)
    add_rows(group_of('started', RUNNING, q.name, f.number, f.attempt, CALLER), o.mark, ids, first, last)
  end
  add_rows(group_of('completed', COMPLETED, q.name, f.number, f.attempt, ''), o.mark, ids, first, last)
  if o.member then flows.count(o.member, COMPLETED, n) end
  if t[STATUS] == PARKED or q.concurrency >= 0 or q.rate > 0 then has_room_again(t) end
end

-- Tasks `first` to `last` have all gone this way.
local function all_applied(token, ids, first, last, codes)
  if last < first then return end
  codes[#codes + 1] = ('a'):rep(last - first + 1)
  end_loans(CALLER, token, ids, first, last)
end

function end_run(i, first, step, count, n, ids, records, owners, codes, settle_one)
  local token, results, times, m = ARGV[i + 1], step == 2, ARGV[i + 4], #written
  local base, runs = n, { unpacked('<' .. ('d'):rep(count), times) } span = nil -- a call may have failed
  local last, from, bytes, t, f, begin, life, size, own = nil, 0, 0, nil, nil, nil, 0, 0, nil
  local open, number = n + 1, tonumber(token) -- from where on all have gone this way
  for k = 0, count - 1 do
    n = n + 1
    local id, r = ids[n], records[n]
    if r ~= last then
      if t and n > from then end_alike(t, f, owners[from], ids, from, n - 1, life, size, bytes, runs, base) end
      t, last, from, bytes = nil, r, n, 0
      if r then t, f, begin, life, size = way_out(r, owners[n], token, results) end
      own = t and sub(r, FATE_END + 1, results and -5 or -1)
      if t and not results then own = begin .. own end
    end
    if t and not latest[id] and tasks[id] == nil and not tied[id] then
      local now_is = own
      bytes = bytes + size
      if results then
        local result = ARGV[first + 2 * k + 1]
        bytes = bytes + #result
        write_part(id, 2, result)
        now_is = begin .. own .. pack('<I', #result)
      end
      written[m + 1], written[m + 2], latest[id] = id, now_is, now_is
      m = m + 2
    else
      if t and n > from then end_alike(t, f, owners[from], ids, from, n - 1, life, size, bytes, runs, base) end
      all_applied(number, ids, open, n - 1, codes)
      last, t, open, raw[id] = nil, nil, n + 1, r or nil
      codes[#codes + 1] = settle_one(id, number, COMPLETED, runs[k + 1], results and 'R' or '',
        results and ARGV[first + 2 * k + 1] or nil, '')
    end
  end
  if t then end_alike(t, f, owners[from], ids, from, n, life, size, bytes, runs, base) end
  all_applied(number, ids, open, n, codes)
  took(nil, runs, 0, -1)
  return n
end
