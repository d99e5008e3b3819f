-- uncollected: tasks that were handed over (lib/hand_off) and not collected go back, charged to nobody.
--
-- 'handed:' of an incarnation is a list of at most one entry: number of its wait, token, id, message. Whoever waits takes it out,
-- so what still lies there is known to nobody else. Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @share uncollected
uncollected = {}

-- What lies there for an incarnation: number of the wait, token, id; nil if there is nothing.
function uncollected.of(name)
  local entry = call('LINDEX', P .. 'handed:' .. name, 0)
  sound[P .. 'handed:' .. name] = true
  local number, token, id = match(entry or '', '^(%d+)\31(%d+)\31([^\31]*)\31')
  return tonumber(number), tonumber(token), id
end

-- Take a loan back that its worker never got to see; whether there was one.
function uncollected.take_back(name, token, id)
  load_tasks({ id })
  local task = tasks[id]
  if not (task and leased_as(task, name, token)) then return false end
  recover(task, false, 'unclaimed')
  return true
end

-- The same with what lies there, if anything does.
function uncollected.clear(name)
  local _, token, id = uncollected.of(name)
  if not id then return false end
  write('UNLINK', P .. 'handed:' .. name)
  return uncollected.take_back(name, token, id)
end

-- Hand nothing over to an incarnation any more: its process is gone. What lies there is left to the caller; its id.
function uncollected.close(name)
  local number = match(call('HGET', P .. 'answers', name) or '', '^(%d+)\31take\31[oh]')
  sound[P .. 'answers'] = true
  if not number then return nil end
  local _, _, id = uncollected.of(name)
  write('HSET', P .. 'answers', name, number .. '\31take\31c')
  write('UNLINK', P .. 'handed:' .. name)
  return id
end
