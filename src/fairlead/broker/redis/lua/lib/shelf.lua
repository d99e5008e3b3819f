-- shelf: finished tasks in the order in which they are to be forgotten.
--
-- A queue has a shelf of completed and cancelled tasks and one of the dead. On each stands an order of all
-- tenants, and one of each tenant that holds much: whoever holds more than a share of the room gives its own
-- oldest, so that nobody loses anything because of another. The twin of memory/shelf.py. Reads KEYS[1], no
-- ARGV. Returns nothing by itself.
--
-- An order is a list and a sorted set. Tasks that ended in the usual way, kept for the usual time, are in
-- the list: first in, first out. The others are in the set, and so are those that would have to go before
-- the last of the list, and those whose id may come again: an entry of a list cannot be taken out when they
-- are deleted. 'large-' of a shelf has the tenants with an order of their own by the share that they hold,
-- largest first; 'heads-' has them by a moment before which nothing of that order is past its time.
-- OWN: the part of the room (a 64th) from which on a tenant has an order of its own. LEAST: the part (a
-- 32nd) beyond which it gives before others; by then half of what it holds, or more, is in that order.
-- @const OWN=64 LEAST=32 DONE_BIT=1 DEAD_BIT=2

function shelves.of(q, state)
  local dead = state == DEAD
  local bit = dead and DEAD_BIT or DONE_BIT
  if not q.shelves then q.shelves = {} end
  local s = q.shelves[bit]
  if not s then
    s = { q = q, listed = not dead, bit = bit, orders = {}, larges = dead and 'large_dead' or 'large_done',
      large = dead and agenda('large-dead:' .. q.name) or agenda('large-done:' .. q.name),
      heads = dead and agenda('heads-dead:' .. q.name) or agenda('heads-done:' .. q.name) }
    q.shelves[bit] = s
  end
  return s
end

-- The order of one tenant, or of all.
function shelves.order(s, t)
  local name = t and t[NAME] or ''
  local o = s.orders[name]
  if not o then
    local where = t and s.q.name .. ':' .. name or s.q.name
    o = { set = s.listed and agenda('done:' .. where) or agenda('dead:' .. where), list = s.listed and P .. 'kept:' .. where,
      gone = 0, new = false, new_gone = 0, empty = false }
    s.orders[name] = o
  end
  return o
end

local function has_own(s, t) return floor(t[OWNS] / s.bit) % 2 == 1 end

-- How many tasks on a shelf are a tenant's, pinned ones too, and how many bytes they count for.
local function held(s, t)
  if s.listed then return t[COUNT + COMPLETED] + t[COUNT + CANCELLED], t[DONE_BYTES] end
  return t[COUNT + DEAD], t[DEAD_BYTES]
end

local function is_large(s, count, bytes)
  if s.listed then return count >= s.q.keep_count / OWN or bytes >= s.q.keep_bytes / OWN end
  return bytes >= s.q.dead_max / OWN
end

-- What part of the room a tenant holds, by tasks or by bytes, whichever is more.
function shelves.share(s, t)
  local count, bytes = held(s, t)
  if s.listed then return max(count / max(s.q.keep_count, 1), bytes / max(s.q.keep_bytes, 1)) end
  return bytes / max(s.q.dead_max, 1)
end

-- Nothing is left in the order of a tenant.
function shelves.let_go(s, t)
  t[OWNS], t[CHANGED] = t[OWNS] - s.bit, true
  s.q[s.larges], s.q.changed = s.q[s.larges] - 1, true
  drop(s.large, t[NAME])
  drop(s.heads, t[NAME])
end

-- What a tenant holds has changed.
local function rank_on(s, t)
  if held(s, t) > 0 then return set_at(s.large, t[NAME], -shelves.share(s, t)) end
  shelves.let_go(s, t)
  local o = shelves.order(s, t)
  if o.list then write('UNLINK', o.list) end -- of tasks that were deleted, entries may be left
  o.new = false
end
function shelves.rank(t)
  if t[OWNS] % 2 == DONE_BIT then rank_on(shelves.of(t[QUEUE], COMPLETED), t) end
  if t[OWNS] >= DEAD_BIT then rank_on(shelves.of(t[QUEUE], DEAD), t) end
end

-- The order that the next task of a large tenant goes into, which is to be forgotten then.
local function own_order(s, t, till, listed)
  if not has_own(s, t) then
    t[OWNS], t[CHANGED] = t[OWNS] + s.bit, true
    s.q[s.larges], s.q.changed = s.q[s.larges] + 1, true
    set_at(s.heads, t[NAME], s.listed and min(till, now + s.q.keep) or till)
  elseif not listed and till < (at_of(s.heads, t[NAME]) or huge) then
    set_at(s.heads, t[NAME], till)
  end
  return shelves.order(s, t)
end

-- Keep one task, which has been counted already, until its time.
function shelves.add(s, t, id, till)
  local o = is_large(s, held(s, t)) and own_order(s, t, till) or shelves.order(s)
  set_at(o.set, id, till)
  o.empty = false
  if t[OWNS] > 0 then shelves.rank(t) end
end

-- Take a task out, wherever it is; an entry of a list stays, and stands for nothing.
function shelves.remove(s, t, id)
  drop(shelves.order(s).set, id)
  if has_own(s, t) then drop(shelves.order(s, t).set, id) end
  if t[OWNS] > 0 then shelves.rank(t) end
end

local function append(s, t, ids, first, last, life, till)
  local q = s.q
  local plain = life == 0 and till >= q.kept_until
  local o = t and own_order(s, t, till, plain) or s.orders[''] or shelves.order(s)
  o.empty = false
  if not plain then
    for i = first, last do set_at(o.set, ids[i], till) end
    return
  end
  q.kept_until = till
  if not o.new then
    o.new, o.new_gone = { unpack(ids, first, last) }, 0
    return
  end
  local new, n = o.new, #o.new
  for i = first, last do
    n = n + 1
    new[n] = ids[i]
  end
end

local function kept_till(q)
  local till = now + q.keep
  if not q.soon or till < q.soon then q.soon = till end
  return q.shelves and q.shelves[DONE_BIT] or shelves.of(q, COMPLETED), till
end

-- The list of the order of all tenants, for whoever puts the ids of tasks there that ended in the usual way and have no life
-- before this one, and until when they are kept; nil if they belong elsewhere because what is there is kept for longer.
function shelves.list_of_all(q)
  local s, till = kept_till(q)
  if till < q.kept_until then return nil end
  local o = shelves.order(s)
  if not o.new then o.new, o.new_gone = {}, 0 end
  o.empty = false
  return o.new, till
end

-- Tasks of tenants that hold little, which ended in the usual way.
function shelves.keep_of_all(q, ids, first, last, life)
  local s, till = kept_till(q)
  append(s, nil, ids, first, last, life, till)
end

-- Tasks of a tenant that ended alike, `bytes` in all, and have been counted already.
function shelves.keep_plainly(t, ids, first, last, life, bytes)
  local s, till = kept_till(t[QUEUE])
  local count, held_bytes = t[COUNT + COMPLETED] + t[COUNT + CANCELLED], t[DONE_BYTES]
  if not is_large(s, count, held_bytes) then return append(s, nil, ids, first, last, life, till) end
  count, held_bytes = count - (last - first + 1), held_bytes - bytes
  local from = first
  if first < last and not is_large(s, count, held_bytes) then -- it has become so with one of these
    repeat
      local _, size, extra = unpacked(SIZE, latest[ids[from]], #latest[ids[from]] - SIZE_LENGTH + 1)
      count, held_bytes, from = count + 1, held_bytes + COUNTED + size + extra, from + 1
    until is_large(s, count, held_bytes)
    from = from - 1
    if from > first then append(s, nil, ids, first, from - 1, life, till) end
  end
  append(s, t, ids, from, last, life, till)
  shelves.rank(t)
end

-- The next ids of an order's list, with their records, up to so many; ids without a finished task are gone.
function shelves.next_listed(o, most)
  if not o.list then return {}, {}, 0 end
  local ids = call('LRANGE', o.list, o.gone, o.gone + most - 1)
  local stored = #ids
  sound[o.list] = true
  for i = 1, min(most - stored, o.new and #o.new - o.new_gone or 0) do ids[stored + i] = o.new[o.new_gone + i] end
  if #ids == 0 then return ids, ids, 0 end
  local records = call('HMGET', P .. 'records', unpack(ids))
  for i = 1, #ids do
    local id = ids[i]
    local task = tasks[id]
    records[i] = task ~= false and (task and to_record(task) or latest[id] or records[i])
  end
  return ids, records, stored
end

writers[#writers + 1] = function()
  for _, q in pairs(queues) do
    for _, s in pairs(q and q.shelves or {}) do
      for _, o in pairs(s.orders) do
        if o.gone > 0 then write('LPOP', o.list, o.gone) end
        if o.new and #o.new > o.new_gone then
          write_all('RPUSH', o.list, o.new_gone > 0 and { unpack(o.new, o.new_gone + 1) } or o.new)
        end
      end
    end
  end
end
