-- jobs: ends of tasks that dependents have not been told of yet, in order.
--
-- 'jobs' holds what is left of them when a call is over: by US the task, its life, how it ended, and the last edge that had been
-- made by then; or what lib/detach says. A call knows those that it made itself, and reads the others when somebody asks for
-- the first of all. Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @share jobs
jobs = {}
local stored, old, new -- those that were there: all, and as far as they were read; those of this call
local page, asked -- how many were read at once, of how many that were asked for
local FIRST = 4 -- so many are read at first: the end of one task may keep a call busy
-- @each
stored, old, new, page, asked = agenda('jobs'), false, {}, 0, 0
-- @end

-- `later`: it cannot be done in this call.
function jobs.add(id, life, state, bound, later)
  M.jobs = M.jobs + 1
  new[#new + 1] = { id = id, life = life, state = state, bound = bound, number = M.jobs, later = later, ended = now }
end

local function read_page()
  asked = asked == 0 and FIRST or STEP
  local rows = before.jobs > 0 and firsts(stored, asked) or {}
  old, page = {}, #rows
  for i = 1, page do
    local id, life, state, bound = match(rows[i][2], '^([^\31]*)\31(%d+)\31(%d+)\31(%d+)$')
    old[i] = { id = id, life = tonumber(life), state = tonumber(state), bound = tonumber(bound), member = rows[i][2] }
  end
end

-- What can be done in this call: the first or, if that is a task that completed, up to `most` such ends that come behind each other.
function jobs.run(most)
  local found, n = {}, 0
  repeat
    if not old then read_page() end
    for _, list in ipairs({ old, new }) do
      for i = 1, #list do
        local job = list[i]
        if not (job.done or job.later) then
          if n == most or n > 0 and not (job.state == COMPLETED and found[1].state == COMPLETED) then return found end
          n = n + 1
          found[n] = job
        end
      end
      if list == old and page == asked then break end -- there may be others before those of this call
    end
    local again = n == 0 and page == asked
    if again then old = false end
  until not again
  return found
end

function jobs.done(job)
  job.done = true
  if job.member then drop(stored, job.member) end
end

-- Whether anything is left to be done, in this call or in others.
function jobs.any()
  if M.jobs == 0 then return false end
  for i = 1, #new do if not new[i].done then return true end end
  if not old then read_page() end
  for i = 1, #old do if not old[i].done then return true end end
  return page == asked and #firsts(stored, 1) > 0
end

writers[#writers + 1] = function()
  for i = 1, #new do
    local job = new[i]
    if not job.done then
      set_at(stored, concat({ job.id, job.life, job.state, format('%.0f', job.bound) }, SEP), job.number)
    end
  end
end
