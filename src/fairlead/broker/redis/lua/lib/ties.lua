-- ties: who depends on whom.
--
-- The twin of memory/release.py. Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @include dependents
-- @include before
-- @include outbox
-- @include jobs
-- @include detach

-- Write down, with the parent, that somebody waits for it.
function remember(parent, member)
  M.edges = M.edges + 1
  dependents.add(parent.id, parent.life, member, M.edges)
end

-- Let a task wait for one of this shard.
function link(child, parent, life)
  M.edges = M.edges + 1
  dependents.add(parent, life, child, M.edges)
  add_edge(child, parent, life, M.edges)
end

-- A parent with a shard is one of another: that shard is sent a link.
function attach(child, parent)
  if parent.shard then
    M.edges = M.edges + 1
    add_edge(child.id, parent.id, '@' .. parent.shard, M.edges)
    return post(parent.shard, 'l', child.id, child.life, parent.id, child.policy)
  end
  link(child.id, parent.id, parent.life)
end

-- Remember that the dependents there are now have to be told of an end.
function add_job(id, life, to)
  if dependents.any(id, life) then jobs.add(id, life, to, M.edges) end
end

tell_ends = function(task, to)
  local ties = ties_of(task.id)
  if ties == '' then return end
  if find(ties, 'd', 1, true) then add_job(task.id, task.life, to) end
  if find(ties, 'w', 1, true) then
    tell_watchers(task, to)
    set_ties(task.id, (ties:gsub('w', '')))
  end
end

orphan = function(task)
  if find(ties_of(task.id), 'd', 1, true) then
    if task.state ~= COMPLETED then add_job(task.id, task.life, 0) end
    dependents.spill(task.id)
    set_ties(task.id, '')
  end
end
