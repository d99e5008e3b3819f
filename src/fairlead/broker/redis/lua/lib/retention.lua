-- The end of a task, and how long it is kept.

-- @part finish
-- The end of a task; those that have ended are kept by age, count and bytes, whichever comes first.
-- The twin of memory/retention.py.
-- @share forgotten shelves ended
begins[#begins + 1] = function()
  forgotten = {} -- ids to remove from everywhere
  ended = {} -- by queue: how many tasks ended in this call
end

shelves = {}

-- Count bytes of a task that is kept, or (below 0) is no longer.
function shelves.count_bytes(tenant, state, bytes)
  local queue = tenant[QUEUE]
  if state == DEAD then queue.dead_bytes, tenant[DEAD_BYTES] = queue.dead_bytes + bytes, tenant[DEAD_BYTES] + bytes
  else queue.done_bytes, tenant[DONE_BYTES] = queue.done_bytes + bytes, tenant[DONE_BYTES] + bytes end
  queue.changed, tenant[CHANGED] = true, true
end

-- As model.lifecycle.may_return: whether a retry of its flow puts it back.
function shelves.may_return(task)
  return task.state == DEAD or task.state == CANCELLED and sub(task.reason, 1, 17) == 'dependency_failed' and not has(task, BODY_GONE)
end

-- End a task: tell who waits for it, let dependents go on, keep what has to be kept. `plain`: it ended in the usual way.
function finish(task, to, reason, keep, plain)
  local from = task.state
  local tenant = tenant_of(task)
  if from ~= to then move(task, to) end
  if from == QUEUED and not task.popped then leave.level(task, tenant) end
  if task.deadline > 0 then drop(deadlines, task.id) end
  task.finished, task.reason = now, reason or ''
  changed[task.id] = task
  detach.all(task, from)
  if task.hold > 0 and task.hold < 3 then unique.release(task) end
  -- What ended for another may be put back to work with its flow.
  if to == CANCELLED and sub(task.reason, 1, 17) ~= 'dependency_failed' then leave.drop_body(task) end
  if task.fields.flow then flows.count(task.fields, to, 1) end
  dependency.tell_ends(task, to)
  stats.count(tenant, to - ENDS, 1)
  pins.release(task)
  if not (pins.keeps(task) and pins.set_aside(task, keep)) then shelves.put(task, keep, plain) end
end

-- Keep a finished task from now on, for its own time or for that of its queue.
function shelves.put(task, keep, plain)
  local tenant = tenant_of(task)
  local queue = tenant[QUEUE]
  local dead = task.state == DEAD or task.fields.flow and shelves.may_return(task) -- with its flow
  task.expires = now + (keep or (dead and queue.keep_dead or queue.keep))
  shelves.count_bytes(tenant, task.state, bytes_of(task))
  if plain then shelves.keep_plainly(tenant, { task.id }, 1, 1, task.life, bytes_of(task))
  else shelves.add(shelves.of(queue, task.state), tenant, task.id, task.expires) end
  queue.soon = min(queue.soon or huge, task.expires)
  ended[queue.name] = (ended[queue.name] or 0) + 1
  if keep and keep <= 0 then shelves.forget(task) end
end

-- Take a finished task off its shelf, because it is put to work again, pinned or forgotten.
function shelves.take(task)
  if pins.keeps(task) then
    pins.leave(task)
  else
    local tenant = tenant_of(task)
    shelves.count_bytes(tenant, task.state, -bytes_of(task))
    shelves.remove(shelves.of(tenant[QUEUE], task.state), tenant, task.id)
  end
  task.expires, task.started = 0, 0
end

shelves.forget = function(task)
  local tenant = tenant_of(task)
  shelves.take(task)
  if pins.known(task.id) then pins.forget(task.id) end
  tenant[COUNT + task.state] = tenant[COUNT + task.state] - 1
  tenant[QUEUE].counts[task.state] = tenant[QUEUE].counts[task.state] - 1
  tenant[CHANGED], tenant[QUEUE].changed = true, true
  if tenant[OWNS] > 0 then shelves.rank(tenant) end
  dependency.orphan(task)
  tasks[task.id], changed[task.id] = false, nil
  forgotten[task.id] = task
end

-- @part leave
-- What a task leaves behind that will never run.
-- @share leave
leave = {}
local digested
begins[#begins + 1] = function()
  digested = 0
end
-- Fetch may never come across an entry; when most of what stands there is gone, expire closes the gaps.
function leave.note_gaps(tenant)
  local holes = entries_of(tenant) - tenant[COUNT + QUEUED]
  if holes <= tenant[COUNT + QUEUED] + 1000 then return end
  local gaps, name = agenda('gaps'), tenant[QUEUE].name .. SEP .. tenant[NAME]
  if not at_of(gaps, name) then set_at(gaps, name, 0) end -- else it is being done, and has come to some place
end

-- Empty a queued task's place: fetch drops the entry when it comes across it.
function leave.level(task, tenant)
  if tenant[COUNT + QUEUED] == 0 then -- nobody will come across it: drop them all now
    clear_lines(tenant)
    fair.unready(tenant, IDLE)
    return
  end
  if tenant[STATUS] == AT_LIMITER then fair.make_ready(tenant) end
  leave.note_gaps(tenant)
end

-- Nothing will ever run it: keep only what tells its content from another. A call does so for some bytes; what is
-- beyond that stays as it is until the task is forgotten.
function leave.drop_body(task)
  digested = digested + task.size
  if digested > DIGESTED and digested > task.size then return end
  local value = message_of(task)
  local _, _, _, rest = opened(value)
  local body, trace, start = unpacked('<II', value, rest)
  local digest = redis.sha1hex(sub(value, start, start + body - 1))
  values[task.id] = sub(value, 1, rest - 1) .. pack('<II', 40, 0) .. digest .. sub(value, start + body + trace)
  rewritten[#rewritten + 1], rewritten[#rewritten + 2] = task.id, values[task.id]
  task.parts, task.size = task.parts + BODY_GONE, 0
end

-- @part shelves
-- Finished tasks in the order in which they are to be forgotten.
-- A queue has a shelf of completed and cancelled tasks and one of the dead. On each stands an order of all tenants,
-- and one of each tenant that holds much: whoever holds more than a share of the room gives its own oldest, so that
-- nobody loses anything because of another. The twin of memory/retention.py.
--
-- An order is a list and a sorted set. Tasks that ended in the usual way, kept for the usual time, are in
-- the list: first in, first out. The others are in the set, and so are those that would have to go before
-- the last of the list, and those whose id may come again: an entry of a list cannot be taken out when they
-- are deleted. 'large-' of a shelf has the tenants with an order of their own by the share that they hold,
-- largest first; 'heads-' has them by a moment before which nothing of that order is past its time.
-- OWN: the part of the room (a 64th) from which on a tenant has an order of its own. LEAST: the part (a
-- 32nd) beyond which it gives before others; by then half of what it holds, or more, is in that order.
-- @const OWN=64 LEAST=32 DONE_BIT=1 DEAD_BIT=2

function shelves.of(queue, state)
  local dead = state == DEAD
  local bit = dead and DEAD_BIT or DONE_BIT
  if not queue.shelves then queue.shelves = {} end
  local shelf = queue.shelves[bit]
  if not shelf then
    shelf = { queue = queue, listed = not dead, bit = bit, orders = {}, larges = dead and 'large_dead' or 'large_done',
      large = dead and agenda('large-dead:' .. queue.name) or agenda('large-done:' .. queue.name),
      heads = dead and agenda('heads-dead:' .. queue.name) or agenda('heads-done:' .. queue.name) }
    queue.shelves[bit] = shelf
  end
  return shelf
end

-- The order of one tenant, or of all.
function shelves.order(shelf, tenant)
  local name = tenant and tenant[NAME] or ''
  local order = shelf.orders[name]
  if not order then
    local where = tenant and shelf.queue.name .. ':' .. name or shelf.queue.name
    order = { set = shelf.listed and agenda('done:' .. where) or agenda('dead:' .. where),
      list = shelf.listed and prefix .. 'kept:' .. where, gone = 0, new = false, new_gone = 0, empty = false }
    shelf.orders[name] = order
  end
  return order
end

local function has_own(shelf, tenant) return floor(tenant[OWNS] / shelf.bit) % 2 == 1 end

-- How many tasks on a shelf are a tenant's, pinned ones too, and how many bytes they count for.
local function held(shelf, tenant)
  if shelf.listed then return tenant[COUNT + COMPLETED] + tenant[COUNT + CANCELLED], tenant[DONE_BYTES] end
  return tenant[COUNT + DEAD], tenant[DEAD_BYTES]
end

local function is_large(shelf, count, bytes)
  if shelf.listed then return count >= shelf.queue.keep_count / OWN or bytes >= shelf.queue.keep_bytes / OWN end
  return bytes >= shelf.queue.dead_max / OWN
end

-- What part of the room a tenant holds, by tasks or by bytes, whichever is more.
function shelves.share(shelf, tenant)
  local count, bytes = held(shelf, tenant)
  if shelf.listed then return max(count / max(shelf.queue.keep_count, 1), bytes / max(shelf.queue.keep_bytes, 1)) end
  return bytes / max(shelf.queue.dead_max, 1)
end

-- Nothing is left in the order of a tenant.
function shelves.let_go(shelf, tenant)
  tenant[OWNS], tenant[CHANGED] = tenant[OWNS] - shelf.bit, true
  shelf.queue[shelf.larges], shelf.queue.changed = shelf.queue[shelf.larges] - 1, true
  drop(shelf.large, tenant[NAME])
  drop(shelf.heads, tenant[NAME])
end

-- What a tenant holds has changed.
local function rank_on(shelf, tenant)
  if held(shelf, tenant) > 0 then return set_at(shelf.large, tenant[NAME], -shelves.share(shelf, tenant)) end
  shelves.let_go(shelf, tenant)
  local order = shelves.order(shelf, tenant)
  if order.list then write('UNLINK', order.list) end -- of tasks that were deleted, entries may be left
  order.new = false
end
function shelves.rank(tenant)
  if tenant[OWNS] % 2 == DONE_BIT then rank_on(shelves.of(tenant[QUEUE], COMPLETED), tenant) end
  if tenant[OWNS] >= DEAD_BIT then rank_on(shelves.of(tenant[QUEUE], DEAD), tenant) end
end

-- The order that the next task of a large tenant goes into, which is to be forgotten then.
local function own_order(shelf, tenant, till, listed)
  if not has_own(shelf, tenant) then
    tenant[OWNS], tenant[CHANGED] = tenant[OWNS] + shelf.bit, true
    shelf.queue[shelf.larges], shelf.queue.changed = shelf.queue[shelf.larges] + 1, true
    set_at(shelf.heads, tenant[NAME], shelf.listed and min(till, now + shelf.queue.keep) or till)
  elseif not listed and till < (at_of(shelf.heads, tenant[NAME]) or huge) then
    set_at(shelf.heads, tenant[NAME], till)
  end
  return shelves.order(shelf, tenant)
end

-- Keep one task, which has been counted already, until its time.
function shelves.add(shelf, tenant, id, till)
  local order = is_large(shelf, held(shelf, tenant)) and own_order(shelf, tenant, till) or shelves.order(shelf)
  set_at(order.set, id, till)
  order.empty = false
  if tenant[OWNS] > 0 then shelves.rank(tenant) end
end

-- Take a task out, wherever it is; an entry of a list stays, and stands for nothing.
function shelves.remove(shelf, tenant, id)
  drop(shelves.order(shelf).set, id)
  if has_own(shelf, tenant) then drop(shelves.order(shelf, tenant).set, id) end
  if tenant[OWNS] > 0 then shelves.rank(tenant) end
end

local function append(shelf, tenant, ids, first, last, life, till)
  local queue = shelf.queue
  local plain = life == 0 and till >= queue.kept_until
  local order = tenant and own_order(shelf, tenant, till, plain) or shelf.orders[''] or shelves.order(shelf)
  order.empty = false
  if not plain then
    for i = first, last do set_at(order.set, ids[i], till) end
    return
  end
  queue.kept_until = till
  if not order.new then
    order.new, order.new_gone = { unpack(ids, first, last) }, 0
    return
  end
  local new, size = order.new, #order.new
  for i = first, last do
    size = size + 1
    new[size] = ids[i]
  end
end

local function kept_till(queue)
  local till = now + queue.keep
  if not queue.soon or till < queue.soon then queue.soon = till end
  return queue.shelves and queue.shelves[DONE_BIT] or shelves.of(queue, COMPLETED), till
end

-- The list of the order of all tenants, for whoever puts the ids of tasks there that ended in the usual way and have no life
-- before this one, and until when they are kept; nil if they belong elsewhere because what is there is kept for longer.
function shelves.list_of_all(queue)
  local shelf, till = kept_till(queue)
  if till < queue.kept_until then return nil end
  local order = shelves.order(shelf)
  if not order.new then order.new, order.new_gone = {}, 0 end
  order.empty = false
  return order.new, till
end

-- Tasks of tenants that hold little, which ended in the usual way.
function shelves.keep_of_all(queue, ids, first, last, life)
  local shelf, till = kept_till(queue)
  append(shelf, nil, ids, first, last, life, till)
end

-- Tasks of a tenant that ended alike, `bytes` in all, and have been counted already.
function shelves.keep_plainly(tenant, ids, first, last, life, bytes)
  local shelf, till = kept_till(tenant[QUEUE])
  local count, held_bytes = tenant[COUNT + COMPLETED] + tenant[COUNT + CANCELLED], tenant[DONE_BYTES]
  if not is_large(shelf, count, held_bytes) then return append(shelf, nil, ids, first, last, life, till) end
  count, held_bytes = count - (last - first + 1), held_bytes - bytes
  local from = first
  if first < last and not is_large(shelf, count, held_bytes) then -- it has become so with one of these
    repeat
      local _, size, extra = unpacked(SIZE, latest[ids[from]], #latest[ids[from]] - SIZE_LENGTH + 1)
      count, held_bytes, from = count + 1, held_bytes + COUNTED + size + extra, from + 1
    until is_large(shelf, count, held_bytes)
    from = from - 1
    if from > first then append(shelf, nil, ids, first, from - 1, life, till) end
  end
  append(shelf, tenant, ids, from, last, life, till)
  shelves.rank(tenant)
end

-- The records of tasks, as they are in this call by now: one that never ran has none before it ends.
function shelves.records_of(ids)
  local records = call('HMGET', prefix .. 'records', unpack(ids))
  for i = 1, #ids do
    local id = ids[i]
    local task = tasks[id]
    records[i] = task ~= false and (task and to_record(task) or latest[id] or records[i])
  end
  return records
end

-- The next ids of an order's list, with their records, up to so many; ids without a finished task are gone.
function shelves.next_listed(order, most)
  if not order.list then return {}, {}, 0 end
  local ids = call('LRANGE', order.list, order.gone, order.gone + most - 1)
  local stored = #ids
  sound[order.list] = true
  for i = 1, min(most - stored, order.new and #order.new - order.new_gone or 0) do ids[stored + i] = order.new[order.new_gone + i] end
  if #ids == 0 then return ids, ids, 0 end
  return ids, shelves.records_of(ids), stored
end

writers[#writers + 1] = function()
  for _, queue in pairs(queues) do
    for _, shelf in pairs(queue and queue.shelves or {}) do
      for _, order in pairs(shelf.orders) do
        if order.gone > 0 then write('LPOP', order.list, order.gone) end
        if order.new and #order.new > order.new_gone then
          write_all('RPUSH', order.list, order.new_gone > 0 and { unpack(order.new, order.new_gone + 1) } or order.new)
        end
      end
    end
  end
end

-- @part fates
-- What is found out once about records that begin the same: those of tasks that were lent by one call, or that ended
-- in one.
local fates
begins[#begins + 1] = function()
  fates = {}
end

function shelves.fate_of(record)
  local bytes = sub(record, 1, FATE_END)
  local fate = fates[bytes]
  if not fate then
    local state, flags, policy, attempts, crashes, unroutable, generation, token, begun, due, deadline, _, expires =
      unpacked(FATE, bytes)
    fate = { since = due, state = state, parts = flags % 64, aside = flags % 128 >= ASIDE, policy = policy, attempt = attempts + 1,
      generation = generation, token = format('%.0f', token), number = token, expires = expires, held = begun == 0,
      untouched = state == RUNNING and flags == 0 and crashes + unroutable + deadline == 0 and (due == 0 or begun == 0) }
    fate.waits_first = state == QUEUED and flags + attempts + crashes + unroutable + generation + token + deadline == 0
    fates[bytes] = fate
  end
  return fate
end

-- How the record of such a task begins once it is completed, with a result or without.
function shelves.completed_fate(fate, queue, results)
  local key = results and queue.name .. SEP or queue
  if not fate[key] then
    fate[key] = pack(FATE, COMPLETED, results and 2 or 0, fate.policy, fate.attempt, 0, 0, fate.generation, fate.number, 0, 0, 0,
      now, now + queue.keep)
  end
  return fate[key]
end
