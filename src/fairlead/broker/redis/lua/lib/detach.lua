-- detach: take a task that ended out of the lists of those it waited for.
--
-- Of one that waited for many the first STEP at once. The rest of its edges becomes 'undone:<number>', and
-- a job of deliver (lib/release): the child, that number, UNDO, and its life and policy. Reads KEYS[1], no ARGV.
-- Returns nothing by itself.
-- WIDE: as how much the end of such a task counts, of STEP. EASED: how many that lose a dependency and go on waiting count for
-- one that is released.
-- @const UNDO=9 WIDE=17 EASED=5
detach = {}
-- @each
detach.eased = 0 -- how many have lost a dependency and go on waiting
detach.told = 0 -- told: how many heard of an end in this call, see lib/release
-- @end

-- As how much one more of these counts.
function detach.ease()
  detach.eased = detach.eased + 1
  return detach.eased % EASED == 1 and 1 or 0
end

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
    if not away(task.id, task.life, task.policy, each[1], each[2]) then dependents.remove(each[1], each[2], task.id) end
  end
  if not rest then return end
  jobs.add(task.id, M.jobs + 1, UNDO, 4 * task.life + task.policy, true) -- its edges are not there in this call
  rest.becomes = 'undone:' .. M.jobs
end

-- Take up to `most` more of these edges away; whether that was all. It may wait for the same again.
function detach.rest(child, number, most, mark)
  local undone = agenda('undone:' .. number)
  local rows = firsts(undone, most)
  for _, each in ipairs(rows) do
    local parent, life = match(each[2], '^(.*)\31([^\31]*)$')
    if not away(child, floor(mark / 4), mark % 4, parent, life) then
      if dependents.number(parent, life, child) == each[1] then dependents.remove(parent, life, child) end
    end
    drop(undone, each[2])
  end
  return #rows, #rows < most
end
