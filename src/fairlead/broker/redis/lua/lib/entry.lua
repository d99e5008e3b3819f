-- entry: one submission from its checks to its place.
--
-- Reads KEYS[1]; its arguments are four of a script's ARGV, see lib/accept. Returns the receipt.

-- Most tasks want nothing special: they need no record, and no task is made of them here.
local function accept_plain(id, head, h, blob)
  if known(id) then replace(id) end
  local life = store(id, head, blob)
  local q = read_queue(h.queue, true)
  local t = q.tenants[h.tenant] or make_tenant(q, h.tenant)
  t.counts[QUEUED] = t.counts[QUEUED] + 1
  q.counts[QUEUED] = q.counts[QUEUED] + 1
  q.changed = true
  if q.warn >= 0 then count_waiting(q) end
  push(t, h.level, life == 0 and id or id .. SEP .. life .. '.0')
  made_queued(t)
  row('enqueued', QUEUED, h.queue, h.tenant, 0, 0, '', id)
  return 'a3'
end

function accept(id, head, blob, options)
  local h = parsed(head)
  local o = options ~= '' and split(options, '\30')
  if o and fenced(o) then return 'f' end
  local old = find_task(id)
  if old then return (same_content(old, head, blob) and 'd' or 'c') .. old.state .. SEP .. id end
  local refusal = o and duplicate_of(o, h) or full(h)
  if refusal then return refusal end
  if not o then return accept_plain(id, head, h, blob) end
  local policy = tonumber(o[3])
  local waits, unknown, failed, verdict = dependencies(o, policy)
  if unknown then return unknown end
  replace(id)
  store(id, head, blob)
  local task = known(id)
  take_unique(task, o)
  task.policy = policy
  changed[id] = task
  if not failed then return place_new(task, o, waits) end
  admit(task, verdict)
  emit('enqueued', task)
  end_for(task, failed, verdict)
  return 'a' .. verdict
end
