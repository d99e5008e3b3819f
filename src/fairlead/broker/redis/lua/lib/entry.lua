-- entry: one submission from its checks to its place.
--
-- Reads KEYS[1]; its arguments are four of a script's ARGV, see lib/accept. Returns the receipt.
local NOTHING = { '0', '', '0', '0', '0', '', '', '', '', '' }

function accept(id, head, blob, options)
  local h = parsed(head)
  local o = options ~= '' and split(options, '\30')
  if o and fenced(o) then return 'f' end
  local old = find_task(id)
  if old then return (same_content(old, head, blob) and 'd' or 'c') .. old.state .. SEP .. id end
  local refusal = tombs.receipt(id, head, blob) or o and duplicate_of(o, h) or full(h, blob)
  if refusal then return refusal end
  o = o or NOTHING
  local policy = tonumber(o[3]) % USES_RESULTS
  local waits, unknown, failed, verdict = dependencies(o, policy)
  if unknown then return unknown end
  replace(id)
  store(id, head, blob)
  local task = known(id)
  take_unique(task, o)
  task.policy = policy
  if o ~= NOTHING then changed[id], task.recorded = task, true end
  if tonumber(o[3]) >= USES_RESULTS then pins.take(task, o[10]) end
  if not failed then return place_new(task, o, waits) end
  admit(task, verdict)
  emit('enqueued', task)
  end_for(task, failed, verdict)
  return 'a' .. verdict
end
