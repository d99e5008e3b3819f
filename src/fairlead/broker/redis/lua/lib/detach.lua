-- detach: take a task that ended out of the lists of those it waited for.
--
-- Of one that waited for many the first STEP at once. The rest of its edges becomes 'undone:<number>', and
-- a job of deliver (lib/release): the child, that number, UNDO, and its life and policy. Reads KEYS[1], no ARGV.
-- Returns nothing by itself.
-- WIDE: as how much the end of such a task counts, of STEP.
-- @const UNDO=9 WIDE=17
detach = {}
local made, many -- such jobs of this call: their edges are not there yet
-- @each
made, many, detach.told = {}, 0, 0 -- told: how many heard of an end in this call, see lib/release
-- @end

-- Another shard is sent word.
local function away(child, life, policy, parent, where)
  if sub(where, 1, 1) ~= '@' then return false end
  post(sub(where, 2), 'u', child, life, parent, policy)
  return true
end

function detach.all(task, from)
  if from ~= DEFERRED then return end
  local edges, rest = take_edges(task.id, STEP)
  for _, each in ipairs(edges) do
    if not away(task.id, task.life, task.policy, each[1], each[2]) then drop(dependents(each[1], each[2]), task.id) end
  end
  if not rest then return end
  M.jobs = M.jobs + 1
  rest.becomes = 'undone:' .. M.jobs
  local job = concat({ task.id, M.jobs, UNDO, format('%.0f', 4 * task.life + task.policy) }, SEP)
  set_at(jobs, job, M.jobs)
  made[job], many = true, many + 1
end

-- The first job that can be done in this call.
function detach.next_job()
  for _, each in ipairs(firsts(jobs, many + 1)) do
    if not made[each[2]] then return each[2] end
  end
end

-- Take up to `most` more of these edges away; whether that was all. It may wait for the same again.
function detach.rest(child, number, most, mark)
  local undone = agenda('undone:' .. number)
  local rows = firsts(undone, most)
  for _, each in ipairs(rows) do
    local parent, life = match(each[2], '^(.*)\31([^\31]*)$')
    if not away(child, floor(mark / 4), mark % 4, parent, life) then
      local there = dependents(parent, life)
      if at_of(there, child) == each[1] then drop(there, child) end
    end
    drop(undone, each[2])
  end
  return #rows, #rows < most
end
