-- leave: what a task leaves behind that will never run.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
local digested
-- @each
digested = 0
-- @end
-- Fetch may never come across an entry; when most of what stands there is gone, tidy closes the gaps.
function note_gaps(t)
  local holes = t[LEN] + t[LEN + 1] + t[LEN + 2] + t[LEN + 3] - t[COUNT + QUEUED]
  if holes <= t[COUNT + QUEUED] + 1000 then return end
  local gaps, name = agenda('gaps'), t[QUEUE].name .. SEP .. t[NAME]
  if not at_of(gaps, name) then set_at(gaps, name, 0) end -- else it is being done, and has come to some place
end

-- Empty a queued task's place: fetch drops the entry when it comes across it.
function leave_level(task, t)
  if t[COUNT + QUEUED] == 0 then -- nobody will come across it: drop them all now
    clear_lines(t)
    unready(t, IDLE)
    return
  end
  if t[STATUS] == AT_LIMITER then make_ready(t) end
  note_gaps(t)
end

-- Nothing will ever run it: keep only what tells its content from another. A call does so for some bytes; what is
-- beyond that stays as it is until the task is forgotten.
function drop_body(t)
  digested = digested + t.size
  if digested > DIGESTED and digested > t.size then return end
  local value = message_of(t)
  local _, _, _, rest = opened(value)
  local body, trace, start = unpacked('<II', value, rest)
  local digest = redis.sha1hex(sub(value, start, start + body - 1))
  values[t.id] = sub(value, 1, rest - 1) .. pack('<II', 40, 0) .. digest .. sub(value, start + body + trace)
  rewritten[#rewritten + 1], rewritten[#rewritten + 2] = t.id, values[t.id]
  t.parts, t.size = t.parts + BODY_GONE, 0
end
