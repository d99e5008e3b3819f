-- pins: a task whose result others will read is kept until the last of them is over.
--
-- The twin of memory/pins.py. 'pins' holds of such a task how many they are and, by US, how long it is
-- to be kept afterwards; 'aside' of a queue how many completed tasks stand on no shelf
-- because they are pinned. A tenant has so much room for these; what is beyond it is kept on its shelf like any
-- other, and has 'o' among its ties instead of 'p'. lib/using has those who pin. Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @share pins
-- ASIDE, a flag of records: it was pinned after its end, so an entry of 'kept' is not its own.
-- @const ASIDE=64
local counts, new_counts, asides, new_asides
-- @each
counts, new_counts, asides, new_asides = {}, {}, {}, {} -- as they are now, and which changed
-- @end
pins = {}

function pins.load(ids)
  for i, text in ipairs(call('HMGET', P .. 'pins', unpack(ids))) do
    if counts[ids[i]] == nil then counts[ids[i]] = text or '' end
  end
  sound[P .. 'pins'] = true
end

local function read(id)
  if counts[id] == nil then pins.load({ id }) end
  local n, keep = match(counts[id], '^(%d+)\31(.*)$')
  return tonumber(n or 0), tonumber(keep or nil)
end

local function set(id, n, keep)
  counts[id], new_counts[id] = n > 0 and n .. SEP .. (keep and exact(keep) or '') or '', true
end

-- Whether it is pinned; and whether it is kept for that: what did not complete has no result.
function pins.holds(id) return find(ties_of(id), 'p', 1, true) ~= nil end
function pins.keeps(task) return task.state == COMPLETED and pins.holds(task.id) end
function pins.known(id) return find(ties_of(id), '[po]') ~= nil end
local function untie(id) set_ties(id, (ties_of(id):gsub('[po]', ''))) end

-- Whether its tenant has room for one more that is kept because it is pinned.
local function fits(task)
  local t = tenant_of(task)
  local most = t[QUEUE].pinned_max
  return most < 0 or t[PIN_BYTES] + bytes_of(task) <= most
end

-- How many tasks of a queue count for no cap.
function pins.aside(name)
  if asides[name] == nil then asides[name] = M.aside > 0 and tonumber(call('HGET', P .. 'aside', name) or 0) or 0 end
  return asides[name] or 0
end

local function count_aside(task, by)
  local n = pins.aside(task.h.queue) + by
  asides[task.h.queue], new_asides[task.h.queue], M.aside = n > 0 and n, true, M.aside + by
  local t = tenant_of(task)
  t[PIN_BYTES], t[CHANGED] = t[PIN_BYTES] + by * bytes_of(task), true
end

-- A pinned task has ended, and is kept aside if there is room for it; whether there is.
function pins.set_aside(task, keep)
  if not fits(task) then
    set_ties(task.id, (ties_of(task.id):gsub('p', 'o')))
    return false
  end
  set(task.id, read(task.id), keep)
  count_aside(task, 1)
  return true
end

-- One is put to work again, or forgotten; is forgotten.
function pins.leave(task) count_aside(task, -1) end
function pins.forget(id) set(id, 0) untie(id) end

function pins.pin(parent)
  local n, keep = read(parent.id)
  local tie = parent.state == COMPLETED and not fits(parent) and 'o' or 'p'
  if n == 0 and parent.state == COMPLETED and tie == 'p' then
    keep = parent.expires - (parent.started > 0 and parent.started or parent.finished)
    shelves.take(parent)
    if parent.parts < ASIDE then parent.parts = parent.parts + ASIDE end
    changed[parent.id] = parent
    count_aside(parent, 1)
  end
  if n == 0 then set_ties(parent.id, ties_of(parent.id) .. tie) end
  set(parent.id, n + 1, keep)
end
-- The same for one that may be past its time.
function pins.repin(parent) if find_task(parent.id) then pins.pin(parent) else forget(parent) end end

function pins.unpin(parent)
  local n, keep = read(parent.id)
  set(parent.id, n - 1, keep)
  if n ~= 1 then return end
  local aside = pins.keeps(parent)
  untie(parent.id)
  if not aside then return end
  count_aside(parent, -1)
  parent.started, changed[parent.id] = now, parent -- since when it is kept
  shelves.put(parent, keep)
end

writers[#writers + 1] = function() write_fields('pins', new_counts, counts) write_fields('aside', new_asides, asides) end
