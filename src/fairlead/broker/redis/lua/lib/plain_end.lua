-- plain_end: the short way for the usual end: completed, nothing special before or after.
--
-- Works on records as they are stored: tasks of one call share the first part, tasks of a tenant
-- the second, and what is found out about either is found out once. Reads KEYS[1] and a run of ARGV,
-- see lib/settle. Returns nothing by itself.
-- Whether it was such an end; then it has been carried out. `m` is how many are written already.
local function end_plainly(id, token, result, r, m, incarnation)
  if tied[id] or tasks[id] ~= nil or latest[id] then return false end
  local f = fate_of(sub(r, 1, FATE_END))
  if not f or f.token ~= token then return false end
  local own = sub(r, FATE_END + 1, -1 - SIZE_LENGTH)
  local t = self_of(own, incarnation)
  if not t then return false end
  local q = t[QUEUE]
  local key = result and q.name or q
  local fate = f.next[key]
  if not fate then fate = f.make(q, result and 2 or 0) f.next[key] = fate end
  local place, life, size, extra = unpacked(SIZE, r, #r - SIZE_LENGTH + 1)
  if result then
    extra = #result
    write_part(id, 2, result)
    r = fate .. own .. pack(SIZE, place, life, size, extra)
  else
    r = fate .. sub(r, FATE_END + 1)
  end
  written[m + 1], written[m + 2], latest[id] = id, r, r
  keep_plainly(q, id, life)
  q.done_bytes = q.done_bytes + 100 + size + extra
  local d = q.counts
  t[COUNT + RUNNING], t[COUNT + COMPLETED] = t[COUNT + RUNNING] - 1, t[COUNT + COMPLETED] + 1
  d[RUNNING], d[COMPLETED] = d[RUNNING] - 1, d[COMPLETED] + 1
  t[CHANGED], q.changed = true, true
  ended[q.name] = (ended[q.name] or 0) + 1
  row('completed', COMPLETED, q.name, t[NAME], f.number, f.attempt, '', id)
  if t[STATUS] == PARKED or q.concurrency >= 0 or q.rate > 0 then has_room_again(t) end
  return true
end

function end_run(i, first, step, count, n, ids, records, incarnation, codes, settle_one)
  local token, results, times = ARGV[i + 1], step == 2, ARGV[i + 4]
  local number, done, m = tonumber(token), 0, #written
  for k = 0, count - 1 do
    n = n + 1
    local id, result = ids[n], results and ARGV[first + 2 * k + 1] or nil
    if records[n] and end_plainly(id, token, result, records[n], m, incarnation) then
      codes[n] = 'a'
      m, done = m + 2, done + 1
    else
      local run_time = unpacked('<d', times, 8 * k + 1)
      codes[n] = settle_one(id, incarnation, number, COMPLETED, run_time, results and 'R' or '', result, '')
      m = #written
    end
  end
  local ended_of = loans_of(incarnation).ended
  if done > 0 then ended_of[number] = (ended_of[number] or 0) + done end
  return n
end
