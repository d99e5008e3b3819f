-- cancel: end a task that waits, ask for the end of one that runs.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
-- d done, r requested, n unchanged, and the state it has now.
function cancel_task(task)
  if task.state >= COMPLETED then return 'n' .. task.state end
  if task.state ~= RUNNING then
    finish(task, CANCELLED, '')
    emit('cancelled', task)
    return 'd8'
  end
  if not task.cancelling then
    task.cancelling = true
    changed[task.id] = task
    set_at(agenda('cancelling:' .. task.incarnation), task.id, task.token)
    emit('cancelling', task, '', task.attempts + 1, task.token)
    send(task.incarnation, 'cancel', task.id, 0, task.token)
  end
  return 'r4'
end
