-- plain_entry: the short way in for tasks that want nothing special, of queues without caps on counts.
--
-- Reads KEYS[1] and runs of ARGV, see enqueue. Returns nothing by itself.
local stamp -- how most values begin
-- @each
stamp = pack('<dI', now, 0)
-- @end
-- What such a task counts for beside the length of its blob, which begins with two numbers (see bytes_of).
-- @const BESIDE=92

-- Tasks `first` to `last` of the call went into the same line; `bytes` is what their tenant has with them.
local function entered(t, h, ids, first, last, chosen, bytes)
  local q, n = t[QUEUE], last - first + 1
  t[COUNT + QUEUED], t[LEN + h.level] = t[COUNT + QUEUED] + n, t[LEN + h.level] + n
  t[SPECIAL], t[LIVE_BYTES] = t[SPECIAL] + chosen, bytes
  q.counts[QUEUED] = q.counts[QUEUED] + n
  t[CHANGED], q.changed = true, true
  stats.count(t, ENQUEUED, n)
  made_queued(t)
  add_rows(group_of('enqueued', QUEUED, h.queue, 0, 0, ''), h.mark, ids, first, last)
end

-- One run of tasks with the same head; those that cannot go this way go the long one. `made` says that no
-- id of the call was chosen by somebody.
function enter_run(i, n, ids, receipts, made)
  local head, count = ARGV[i + 1], tonumber(ARGV[i + 2])
  local h, t, m, back, b = parsed(head), ways[head], #accepted, nil, 0
  local prefix, first, chosen = stamp .. pack('<H', #head) .. head, n + 1, 0
  local bytes, top = 0, 0 -- what the tenant has with those so far, and may have
  if t then bytes, top = t[LIVE_BYTES], t[TOP] end
  for k = i + 3, i + 1 + 2 * count, 2 do
    local id, blob = ARGV[k], ARGV[k + 1]
    n = n + 1
    if t == nil and tasks[id] == false then
      t = way_of(head)
      if t then bytes, top = t[LIVE_BYTES], t[TOP] end
    end
    local more = bytes + #blob + BESIDE
    if not t or tasks[id] ~= false or #blob > LARGE_BODY or more > top then
      if n > first then entered(t, h, ids, first, n - 1, chosen, bytes) end
      receipts[n] = accept(id, head, blob, '')
      m, first, chosen, back, bytes = #accepted, n + 1, 0, nil, t and t[LIVE_BYTES] or 0
    else
      local entry, value = id, nil
      -- Ids that Fairlead makes are never used twice; any other may come back after it was forgotten.
      if #id == 32 and (made or not find(id, ':', 1, true)) then
        value = prefix .. blob
      else
        local life = next_life()
        chosen = chosen + 1
        value = pack('<dIH', now, life, #head) .. head .. blob
        entry = id .. SEP .. life .. '.0'
      end
      if not back then
        back = added(line(t, h.level), L_BACK)
        b = #back
      end
      b, bytes = b + 1, more
      accepted[m + 1], accepted[m + 2], fresh[id], tasks[id], back[b], receipts[n] = id, value, value, nil, entry, 'a3'
      m = m + 2
    end
  end
  if n >= first then entered(t, h, ids, first, n, chosen, bytes) end
  return n, i + 3 + 2 * count
end
