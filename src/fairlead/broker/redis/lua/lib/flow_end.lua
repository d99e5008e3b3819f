-- flow_end: at the end of a call, flows whose last member ended are finished, and others run again.
--
-- The other half of lib/flows. Reads KEYS[1], no ARGV. Returns nothing by itself.
local KEEP = { [COMPLETED] = 3600, [DEAD] = 604800, [CANCELLED] = 604800 } -- seconds

local function tell(f, state)
  local name = '\30' .. f.id
  if not find(ties_of(name), 'w', 1, true) then return end
  for each in string.gmatch(call('HGET', P .. 'watchers', name) or '', '[^\31]+') do
    send(each, 'finished', f.id, state, 0)
  end
  write('HDEL', P .. 'watchers', name)
  set_ties(name, '')
end

local function finish_flow(f, state)
  flows.keep(f, 1)
  set_at(flows.ends, f.id, now + KEEP[state])
  row('flow_' .. NAMES[state], state, '', f.tenant, 0, 0, '', f.id)
  tell(f, state)
  flows.forget_old(2) -- at most two others for each
end

-- Before the writers of ties and mail.
writers[#writers + 1] = function()
  local changed = flows.changed
  for i = 1, #changed do
    local f = changed[i]
    local state = not f.gone and flows.state(f)
    if state and state ~= RUNNING and f.finished == 0 then finish_flow(f, state)
    elseif state == RUNNING and f.finished > 0 then
      flows.keep(f, -1)
      drop(flows.ends, f.id)
    end
  end
  local args = {}
  if #flows.gone > 0 then write_all('HDEL', P .. 'flows', flows.gone) end
  for i = 1, #changed do
    local f = changed[i]
    if not f.gone then
      args[#args + 1] = f.id
      args[#args + 1] = pack(flows.FORM, f.phase, f.work, f.next, f.total, f.edges, f.parts, f.place, f[COMPLETED],
        f[DEAD], f[CANCELLED], f.life, f.committed, f.finished, #f.tenant, f.tenant, #f.name, f.name, #f.writer,
        f.writer, #f.shares, f.shares)
    end
  end
  if #args > 0 then write_all('HSET', P .. 'flows', args) end
end

after[#after + 1] = function() flows.changed, flows.gone = nil, nil end
