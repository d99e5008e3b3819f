-- plain_end: the short way for the usual end: completed, nothing special before or after.
--
-- Works on records as they are stored; what a run of equal ones changes is changed once. Reads
-- KEYS[1] and a run of ARGV, see lib/settle. Returns nothing by itself.
-- Tasks `first` to `last` of `ids` ended alike, with so many bytes of results.
local function end_alike(e, ids, first, last, bytes)
  local t, f, n = e.tenant, e.fate, last - first + 1
  local q = t[QUEUE]
  local d = q.counts
  t[COUNT + RUNNING], t[COUNT + COMPLETED] = t[COUNT + RUNNING] - n, t[COUNT + COMPLETED] + n
  d[RUNNING], d[COMPLETED] = d[RUNNING] - n, d[COMPLETED] + n
  t[CHANGED], q.changed = true, true
  q.done_bytes = q.done_bytes + n * (COUNTED + e.size) + bytes
  keep_plainly(q, ids, first, last, e.life)
  ended[q.name] = (ended[q.name] or 0) + n
  rows_of(ids, first, last, 'completed', COMPLETED, q.name, t[NAME], f.number, f.attempt, '')
  if t[STATUS] == PARKED or q.concurrency >= 0 or q.rate > 0 then has_room_again(t) end
  local ends_of = loans_of(CALLER).ended
  ends_of[f.number] = (ends_of[f.number] or 0) + n
end

function end_run(i, first, step, count, n, ids, records, codes, settle_one)
  local token, results, times = ARGV[i + 1], step == 2, ARGV[i + 4]
  local m, run, from, bytes = #written, false, 0, 0
  for k = 0, count - 1 do
    n = n + 1
    local id, r = ids[n], records[n]
    local e = r and not latest[id] and tasks[id] == nil and not tied[id] and ends[r]
    if e == nil then e = end_of(r, CALLER) end
    if e and e.token == token then
      if e ~= run then
        if run then end_alike(run, ids, from, n - 1, bytes) end
        run, from, bytes = e, n, 0
      end
      if results then
        local result = ARGV[first + 2 * k + 1]
        bytes = bytes + #result
        write_part(id, 2, result)
        r = e[#result] or ended_record(e, #result)
      else
        r = e[-1] or ended_record(e, -1)
      end
      written[m + 1], written[m + 2], latest[id], codes[n] = id, r, r, 'a'
      m = m + 2
    else
      if run then end_alike(run, ids, from, n - 1, bytes) end
      run = false
      codes[n] = settle_one(id, tonumber(token), COMPLETED, unpacked('<d', times, 8 * k + 1),
        results and 'R' or '', results and ARGV[first + 2 * k + 1] or nil, '')
      m = #written
    end
  end
  if run then end_alike(run, ids, from, n, bytes) end
  return n
end
