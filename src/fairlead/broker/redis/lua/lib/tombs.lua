-- tombs: a chosen id whose task was forgotten before its time stays known for the rest of that time.
--
-- 'tombs' holds of such an id until when, how the task ended, a digest of its content, its tenant; 'tombs:' of a tenant
-- has its ids by that time, and 'tomb-ends' the tenants by a moment before which none of theirs is over. The
-- twin of memory/tombs.py. Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @share tombs
local STONE = '<dB'
local MOST = 10000 -- of one tenant: MAX_TOMBS in broker/verbs.py
local AHEAD = 128 -- of its first that are read at once, if some have to make room
local stones, changed_stones, sizes, oldest
-- @each
stones, changed_stones, sizes, oldest = {}, {}, {}, {}
tombs.read = 0 -- bytes of messages that were read to be digested in this call
-- @end
tombs = {}

-- Whether an id may come again; those that Fairlead makes never do.
function tombs.chosen(id) return #id ~= 32 or find(id, ':', 1, true) ~= nil end

local function digest(head, body) return redis.sha1hex(content_of(head) .. '\30' .. body) end
local function order_of(tenant) return agenda('tombs:' .. tenant) end

local function forget_stone(tenant, id)
  drop(order_of(tenant), id)
  stones[id], changed_stones[id], M.tombs = false, true, M.tombs - 1
end

function tombs.remove(tenant, id)
  forget_stone(tenant, id)
  if #firsts(order_of(tenant), 1) == 0 then drop(agenda('tomb-ends'), tenant) end
end

-- The first of a tenant's, of which some are read ahead: one by one they would be looked for behind all that went before.
local function first_of(tenant, a)
  local list = oldest[tenant]
  while list and list[list.next] and at_of(a, list[list.next][2]) ~= list[list.next][1] do list.next = list.next + 1 end
  if not list or not list[list.next] then
    list = firsts(a, AHEAD)
    list.next, oldest[tenant] = 1, list
  end
  return list[list.next][2]
end

-- What is left of the task, as it was stored; `bodiless` if its body is a digest already.
function tombs.put(tenant, id, state, till, bodiless)
  local value = values[id] or call('HGET', P .. 'tasks', id)
  if not value then return end -- somebody has deleted it: nobody knows what it was
  local _, _, head, rest = opened(value)
  local size, _, start = unpacked('<II', value, rest)
  local body, a, ends = sub(value, start, start + size - 1), order_of(tenant), agenda('tomb-ends')
  tombs.read = tombs.read + size
  if not at_of(a, id) then
    sizes[tenant], M.tombs = (sizes[tenant] or call('ZCARD', a.key)) + 1, M.tombs + 1
    if sizes[tenant] > MOST then
      forget_stone(tenant, first_of(tenant, a))
      sizes[tenant] = sizes[tenant] - 1
    end
  end
  stones[id] = pack(STONE, till, state) .. digest(parsed(head).base or head, bodiless and body or redis.sha1hex(body)) .. tenant
  changed_stones[id] = true
  set_at(a, id, till)
  local ahead = oldest[tenant]
  if ahead and till <= ahead[#ahead][1] then oldest[tenant] = nil end -- it belongs among those that were read
  if till < (at_of(ends, tenant) or huge) then set_at(ends, tenant, till) end
end

-- How the task of this id ended, the digest of its content, and its tenant; nil if nothing is known of it.
function tombs.find(id)
  if M.tombs == 0 or not tombs.chosen(id) then return nil end
  if stones[id] == nil then stones[id] = call('HGET', P .. 'tombs', id) end
  if not stones[id] then return nil end
  local till, state, at = unpacked(STONE, stones[id])
  if till > now then return state, sub(stones[id], at, at + 39), sub(stones[id], at + 40) end
end

-- The receipt for a task of an id that is known by its tomb only.
function tombs.receipt(id, head, blob)
  local state, known_digest = tombs.find(id)
  if not state then return nil end
  tasks[id] = nil -- so that the next one of this id does not go the short way
  local size, _, from = unpacked('<II', blob)
  local same = digest(head, redis.sha1hex(sub(blob, from, from + size - 1))) == known_digest
  return (same and 'd' or 'c') .. state .. SEP .. id
end

-- Of ids that are most likely new, those with a tomb have to be looked at.
function tombs.look_at(ids)
  local some = {}
  for i = 1, #ids do if tombs.chosen(ids[i]) then some[#some + 1] = ids[i] end end
  if #some == 0 then return end
  for i, stone in ipairs(call('HMGET', P .. 'tombs', unpack(some))) do
    if stones[some[i]] == nil then stones[some[i]] = stone end
    if stone and tasks[some[i]] == false then tasks[some[i]] = nil end
  end
end

-- Forget up to `most` whose time is over; how many.
function tombs.expire(most)
  local done, ends = 0, agenda('tomb-ends')
  while done < most and M.tombs > 0 do
    local first = firsts(ends, 1, now)[1]
    if not first then break end
    local tenant = first[2]
    local a = order_of(tenant)
    for _, each in ipairs(firsts(a, most - done, now)) do
      tombs.remove(tenant, each[2])
      done = done + 1
    end
    local next = firsts(a, 1)[1]
    if next then set_at(ends, tenant, next[1]) else drop(ends, tenant) end
  end
  return done
end

writers[#writers + 1] = function() write_fields('tombs', changed_stones, stones) end
