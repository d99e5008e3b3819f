-- past_end: one submission that has ended already, because it ran where it was enqueued.
--
-- Reads KEYS[1]; its arguments are seven of a script's ARGV: id, head, blob, and of its end to, more,
-- result and error, see lib/settle. Returns the receipt, see lib/accept; d: with the same end; f: it runs
-- or has another end.
function accept_end(id, head, blob, to, more, result, err)
  local m = split(more, SEP)
  local keep, reason = tonumber(m[4]), concat(m, SEP, 5)
  local task = find_task(id)
  if not task then
    local buried = tombs.receipt(id, head, blob)
    if buried then return buried end
    replace(id)
    store(id, head, blob)
    task = known(id)
    admit(task, to)
    emit('enqueued', task)
  elseif not same_content(task, head, blob) then
    return 'c' .. task.state .. SEP .. id
  elseif not WAITS[task.state] then
    if task.state == to and task.reason == reason then return 'd' .. to .. SEP .. id end
    stats.add(read_queue(task.h.queue), FENCED, 1)
    emit('fenced', task)
    return 'f'
  end
  if to == DEAD then stats.add(tenant_of(task)[QUEUE], FAILED, 1) end
  changed[id], task.recorded, task.attempts = task, true, task.attempts + 1
  if err ~= '' then set_part(task, 1, err, unpacked('<I', err)) end
  if sub(more, 1, 1) == 'R' then set_part(task, 2, result) end
  finish(task, to, reason, keep)
  emit(NAMES[to], task, reason, task.attempts, 0)
  return 'a' .. to
end
