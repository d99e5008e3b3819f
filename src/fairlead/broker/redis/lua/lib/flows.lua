-- flows: what is known of a flow, and what the ends of its members come to.
--
-- The twin of memory/flow.py; stored.py reads the same format. Where the id of a task may stand, that of
-- a flow has RS before it. Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @share flows
-- @const STAGED=1 LAYING=2 LIVE=3 LAY=1 CANCEL=2 RETRY=3
-- @const FLOWS_KEPT=10000 MEMBERS_KEPT=200000
flows = {} -- one name for all: Lua allows a library 200
-- Phase, what is done to it and next; members, rows in 'edges:', parts, place; members by final state; life,
-- committed, finished, tenant, name, who writes it, shares.
flows.FORM = '<BBBIIIIIIIIddBc0Hc0Bc0Ic0'
local seen -- by id; false: there is none
-- @each
seen, flows.changed, flows.gone = {}, {}, {} -- changed in this call, in order; ids that went
flows.ends, flows.stages, flows.layouts = agenda('flow-ends'), agenda('stages'), agenda('layouts')
-- @end

function flows.read(id)
  local f = seen[id]
  if f == nil then
    local r = call('HGET', P .. 'flows', id)
    f, sound[P .. 'flows'] = r and { id = id } or false, true
    if f then
      f.phase, f.work, f.next, f.total, f.edges, f.parts, f.place, f[COMPLETED], f[DEAD], f[CANCELLED], f.life,
        f.committed, f.finished, f.tenant, f.name, f.writer, f.shares = unpacked(flows.FORM, r)
    end
    seen[id] = f
  end
  return f or nil
end

function flows.touch(f)
  if not f.changed then f.changed, flows.changed[#flows.changed + 1] = true, f end
  seen[f.id] = f
end

-- The flow, unless it is unknown, or past the time in which it must be committed or is remembered.
function flows.find(id)
  local f = flows.read(id)
  local till = f and at_of(f.phase == STAGED and flows.stages or flows.ends, id)
  return f and not (till and till <= now) and f or nil
end

-- What members wait for until all were seen to, as if it were a task.
function flows.guard(f) return { id = '\30' .. f.id, life = 0 } end

-- The flow of a member that is being retried: its parents may be about to be put back to work.
function flows.retried(h)
  local f = M.laying > 0 and h.flow and flows.read(h.flow)
  return f and f.work == RETRY and f.life == h.flow_life and f or nil
end

-- Members with this head ended like this, or (below 0) were put back to work. The id may be another's now.
function flows.count(h, state, n)
  local f = flows.read(h.flow)
  if not f or f.phase == STAGED or f.life ~= h.flow_life then return end
  f[state] = f[state] + n
  flows.touch(f)
end

function flows.state(f)
  if f.phase < LIVE or f[COMPLETED] + f[DEAD] + f[CANCELLED] < f.total then return RUNNING end
  return f[DEAD] > 0 and DEAD or f[CANCELLED] > 0 and CANCELLED or COMPLETED
end

-- One is kept that is finished; or (-1) no longer.
function flows.keep(f, n)
  M.flows_kept, M.members_kept, f.finished = M.flows_kept + n, M.members_kept + n * f.total, n > 0 and now or 0
end

-- Forget a flow; lib/staging gives the room of one back that was never committed.
function flows.drop(f)
  if f.finished > 0 then flows.keep(f, -1) end
  drop(f.phase == STAGED and flows.stages or flows.ends, f.id)
  if f.work > 0 then drop(flows.layouts, f.id) M.laying = M.laying - 1 end
  for _, name in ipairs({ 'flow:', 'edges:', 'staged:' }) do write('UNLINK', P .. name .. f.id) end
  seen[f.id], f.gone, flows.gone[#flows.gone + 1] = false, true, f.id
end

-- Forget finished flows that are too many, or past their time.
function flows.forget_old(most)
  for done = 1, most do
    local fits = M.flows_kept <= FLOWS_KEPT and M.members_kept <= MEMBERS_KEPT
    local first = M.flows_kept > 0 and firsts(flows.ends, 1, fits and now or nil)[1]
    if not first then return done - 1 end
    flows.drop(flows.read(first[2]))
  end
  return most
end
