-- ties: who waits for a task: clients that watch it, tasks that depend on it.
--
-- 'ties' says in one read whether a task has any. The twin of memory/release.py. Reads KEYS[1], no
-- ARGV. Returns nothing by itself.
-- @share jobs send tied
local any_ties
-- @each
tied = {} -- id -> 'w', 'd', 'wd' or false
any_ties = nil
jobs = agenda('jobs') -- ends that dependents have not been told of yet, in order
-- @end

function load_ties(ids)
  if any_ties == nil then any_ties = call('EXISTS', P .. 'ties') == 1 end
  if not any_ties then return end
  for i, value in ipairs(call('HMGET', P .. 'ties', unpack(ids))) do
    if tied[ids[i]] == nil then tied[ids[i]] = value end
  end
end

local function ties_of(id)
  if tied[id] == nil then load_ties({ id }) end
  return tied[id] or ''
end

local function set_ties(id, value)
  tied[id] = value ~= '' and value or false
  if value == '' then write('HDEL', P .. 'ties', id) else write('HSET', P .. 'ties', id, value) end
end

-- Dependents in the order they came; a life of the same id that came later has others.
function dependents(id, life) return agenda('after:' .. life .. ':' .. id) end
function parents(id) return agenda('before:' .. id) end

function attach(child, parent)
  M.edges = M.edges + 1
  set_at(dependents(parent.id, parent.life), child.id, M.edges)
  set_at(parents(child.id), parent.id .. SEP .. parent.life, M.edges)
  local ties = ties_of(parent.id)
  if not find(ties, 'd', 1, true) then set_ties(parent.id, ties .. 'd') end
end

function unlink(child, parent_id, life)
  drop(dependents(parent_id, life), child.id)
  drop(parents(child.id), parent_id .. SEP .. life)
end

-- Take a task out of the lists of those it waited for.
detach = function(task, from)
  if from ~= DEFERRED then return end
  for _, each in ipairs(firsts(parents(task.id), 1000)) do
    local id, life = match(each[2], '^(.*)\31(%d+)$')
    unlink(task, id, life)
  end
end

-- Remember that the dependents there are now have to be told of an end.
local function add_job(task, to)
  if #firsts(dependents(task.id, task.life), 1) == 0 then return end
  M.jobs = M.jobs + 1
  set_at(jobs, concat({ task.id, task.life, to, format('%.0f', M.edges) }, SEP), M.jobs)
end

-- lib/mail
tell_ends = function(task, to)
  local ties = ties_of(task.id)
  if ties == '' then return end
  if find(ties, 'w', 1, true) then
    for each in string.gmatch(call('HGET', P .. 'watchers', task.id) or '', '[^\31]+') do
      send(each, 'finished', task.id, to, 0)
    end
    write('HDEL', P .. 'watchers', task.id)
  end
  local d = find(ties, 'd', 1, true)
  if d then add_job(task, to) end
  set_ties(task.id, d and 'd' or '')
end

-- Remember that an incarnation wants to hear of the end of a task.
function add_watcher(id, incarnation)
  local ties, stored = ties_of(id), call('HGET', P .. 'watchers', id) or ''
  if find(SEP .. stored .. SEP, SEP .. incarnation .. SEP, 1, true) then return end
  write('HSET', P .. 'watchers', id, stored == '' and incarnation or stored .. SEP .. incarnation)
  if not find(ties, 'w', 1, true) then set_ties(id, ties .. 'w') end
end

orphan = function(task)
  if find(ties_of(task.id), 'd', 1, true) then
    if task.state ~= COMPLETED then add_job(task, 0) end
    set_ties(task.id, '')
  end
end
