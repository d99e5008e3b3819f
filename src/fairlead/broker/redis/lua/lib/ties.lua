-- ties: who depends on whom.
--
-- The twin of memory/release.py. 'after:' of a parent holds its children: an id, or, if it lives in
-- another shard, that shard, id, life and policy, by US. Reads KEYS[1], no ARGV. Returns nothing by
-- itself.
-- @include tied
-- @include before
-- @include outbox
-- @include detach
-- @share jobs
-- @each
jobs = agenda('jobs') -- ends that dependents have not been told of yet, in order
-- @end

-- Dependents in the order they came; a life of the same id that came later has others.
function dependents(id, life) return agenda('after:' .. life .. ':' .. id) end

-- Write down, with the parent, that somebody waits for it.
function remember(parent, member)
  M.edges = M.edges + 1
  set_at(dependents(parent.id, parent.life), member, M.edges)
  local ties = ties_of(parent.id)
  if not find(ties, 'd', 1, true) then set_ties(parent.id, ties .. 'd') end
end

-- A parent with a shard is one of another: that shard is sent a link.
function attach(child, parent)
  if parent.shard then
    M.edges = M.edges + 1
    add_edge(child.id, parent.id, '@' .. parent.shard, M.edges)
    return post(parent.shard, 'l', child.id, child.life, parent.id, child.policy)
  end
  remember(parent, child.id)
  add_edge(child.id, parent.id, parent.life, M.edges)
end

-- Whether it still waited.
function unlink(child, parent_id, life)
  drop(dependents(parent_id, life), child.id)
  return drop_edge(child.id, parent_id, life)
end

-- Remember that the dependents there are now have to be told of an end.
function add_job(id, life, to)
  if #firsts(dependents(id, life), 1) == 0 then return end
  M.jobs = M.jobs + 1
  set_at(jobs, concat({ id, life, to, format('%.0f', M.edges) }, SEP), M.jobs)
end

tell_ends = function(task, to)
  local ties = ties_of(task.id)
  if ties == '' then return end
  if find(ties, 'w', 1, true) then tell_watchers(task, to) end
  if find(ties, 'd', 1, true) then add_job(task.id, task.life, to) end
  if find(ties, 'w', 1, true) then set_ties(task.id, (ties:gsub('w', ''))) end
end

orphan = function(task)
  if find(ties_of(task.id), 'd', 1, true) then
    if task.state ~= COMPLETED then add_job(task.id, task.life, 0) end
    set_ties(task.id, '')
  end
end
