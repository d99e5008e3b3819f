-- expire: forget what is past its retention or TTL, at most STEP things.
--
-- ARGV     clock, caller, number
-- Returns  by RS: time, count, more
-- @flags allow-oom
-- @library upkeep
-- @include engine fair.head queue.gaps accept.duplicate accept.store flow_members.see_to documents.xcom
-- @include documents.documents workers.registered settings.configure call.once
local kept = once('tidy', tostring)
if kept then return kept end
local done = 0
local SILENT = 1000 -- workers that may hold leases without being heard of; a sweep ends those

-- Take what is over out of an agenda, and what belongs to it out of a hash.
local function expire_from(name, hash)
  local keys = {}
  for _, each in ipairs(done < STEP and firsts(agenda(name), STEP - done, now) or {}) do
    keys[#keys + 1] = each[2]
    drop(agenda(name), each[2])
  end
  if #keys > 0 then write_all('HDEL', prefix .. hash, keys) end
  done = done + #keys
  return keys
end

-- XCom values whose TTL is over, but not those of pinned tasks: these are looked at again later.
local held, LOOK_AGAIN = 0, 60 -- seconds
local function expire_values()
  if done >= STEP then return end
  local any, ends, keys = call('EXISTS', prefix .. 'pins') == 1, agenda('xcom-ends'), {}
  for _, each in ipairs(firsts(ends, STEP - done, now)) do
    local _, writer = unpacked('<dHc0', any and call('HGET', prefix .. 'xcom', each[2]) or pack('<dHc0', 0, 0, ''))
    if any and call('HEXISTS', prefix .. 'pins', writer) == 1 then
      held = held + 1
      set_at(ends, each[2], now + LOOK_AGAIN)
    else
      keys[#keys + 1] = each[2]
      drop(ends, each[2])
      xcom.drop(each[2])
    end
  end
  if #keys > 0 then write_all('HDEL', prefix .. 'xcom', keys) end
  done = done + #keys
end

local left
done, left = shelves.trim_due(STEP)
local gaps = done < STEP and close_gaps() -- not counted: nothing that anybody knew of
expire_values()
expire_from('windows', 'unique')
done = done + tombs.expire(STEP - done)
done = done + documents.expire(STEP - done)
done = done + flows.forget_old(STEP - done)
for _, each in ipairs(done < STEP and firsts(flows.stages, STEP - done, now) or {}) do
  flows.unstage(flows.read(each[2]))
  done = done + 1
end
local unset = done < STEP and configure.apply_on() -- if whoever changed them went away
local silent = {}
for _, each in ipairs(done < STEP and firsts(agenda('seen'), SILENT, now) or {}) do
  if #silent < STEP - done and not at_of(lease_ends, each[2]) then silent[#silent + 1] = each[2] end
end
registered.forget(silent)
done = done + #silent
for _, each in ipairs(done < STEP and firsts(idle_ends, STEP - done, now) or {}) do
  if at_of(lease_ends, each[2]) then leases.keep_incarnation(each[2]) end
end
for _, name in ipairs(expire_from('idle', 'answers')) do drop_mail(name) end
for _, each in ipairs(done < STEP and firsts(agenda('tallies'), STEP - done, now) or {}) do
  drop(agenda('tallies'), each[2])
  local queue, hour = match(each[2], '^([^\31]*)\31(%d+)$')
  write('UNLINK', prefix .. 'tally:' .. queue .. ':' .. hour)
  done = done + 1
end
follow_up()
return answer(concat({ exact(now), done, (done + held >= STEP or gaps or left or unset) and 1 or 0 }, '\30'))
