-- Small things that processes share: documents, and XCom values.

-- @part documents
-- Small things that processes share, by kind and name; their values are never read here.
-- 'documents:' of a kind holds name -> revision, changed at, expires at (0: never), value. 'document-names:' has its
-- names in the order of their bytes, 'document-ends:' those that expire by that time, and 'document-ends' the kinds
-- by a moment before which none of theirs is over. The twin of memory/documents.py.
-- @share documents
-- MAX_DOCUMENTS in broker/documents.py.
-- @const MAX_DOCUMENTS=10000
local FORM = '<ddd'
local kinds
begins[#begins + 1] = function()
  kinds = {}
end
documents = {}

local function shelf_of(kind)
  local shelf = kinds[kind]
  if not shelf then
    shelf = { kind = kind, names = agenda('document-names:' .. kind), ends = agenda('document-ends:' .. kind),
      revisions = {}, values = {}, changed = {} }
    kinds[kind] = shelf
  end
  return shelf
end

-- The revision that a document has now; 0 if there is none, or its time is over.
function documents.revision(kind, name)
  local shelf, key = shelf_of(kind), prefix .. 'documents:' .. kind
  if not shelf.revisions[name] then
    local stored = call('HGET', key, name)
    local revision, _, till = unpacked(FORM, stored and #stored >= 24 and stored or pack(FORM, 0, 0, 0))
    shelf.revisions[name], sound[key] = (till == 0 or till > now) and revision or 0, true
  end
  return shelf.revisions[name]
end

-- How many of a kind there are, without those whose time is over. To be asked before anything of it is changed.
local function count(shelf)
  if not shelf.count then shelf.count = call('ZCARD', shelf.names.key) - call('ZCOUNT', shelf.ends.key, '-inf', now) end
  return shelf.count
end

local function ends_at(shelf, name, till)
  local ends = agenda('document-ends')
  if till > 0 then
    set_at(shelf.ends, name, till)
    if till < (at_of(ends, shelf.kind) or huge) then set_at(ends, shelf.kind, till) end
  elseif at_of(shelf.ends, name) then
    drop(shelf.ends, name)
    if #firsts(shelf.ends, 1) == 0 then drop(ends, shelf.kind) end
  end
end

-- Write one; its new revision, or nil if there are too many of its kind.
function documents.put(kind, name, value, ttl)
  local shelf, new = shelf_of(kind), documents.revision(kind, name) == 0
  if new and count(shelf) >= MAX_DOCUMENTS then return nil end
  shelf.count = count(shelf) + (new and 1 or 0)
  meta.token = next_number(meta.token)
  local till = ttl and now + ttl or 0
  shelf.revisions[name], shelf.values[name], shelf.changed[name] = meta.token, pack(FORM, meta.token, now, till) .. value, true
  set_at(shelf.names, name, 0)
  ends_at(shelf, name, till)
  return meta.token
end

local function remove(shelf, name)
  shelf.revisions[name], shelf.values[name], shelf.changed[name] = 0, false, true
  drop(shelf.names, name)
  ends_at(shelf, name, 0)
end

function documents.delete(kind, name)
  local shelf = shelf_of(kind)
  if documents.revision(kind, name) == 0 then return end
  shelf.count = count(shelf) - 1
  remove(shelf, name)
end

-- Forget up to `most` whose time is over; how many.
function documents.expire(most)
  local done, ends = 0, agenda('document-ends')
  for _, first in ipairs(most > 0 and firsts(ends, most, now) or {}) do
    local shelf = shelf_of(first[2])
    for _, each in ipairs(done < most and firsts(shelf.ends, most - done, now) or {}) do
      remove(shelf, each[2])
      done = done + 1
    end
    local next = firsts(shelf.ends, 1)[1]
    if next then set_at(ends, shelf.kind, next[1]) else drop(ends, shelf.kind) end
  end
  return done
end

-- One change of ARGV from `i` on: kind, name, 'w' and value or 'd', ttl or '', revision or ''; the answer to it.
function documents.change(i)
  local kind, name, action, value = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local ttl, wanted = tonumber(ARGV[i + 4]), tonumber(ARGV[i + 5])
  local revision = documents.revision(kind, name)
  if wanted and wanted ~= revision then return 's' .. format('%.0f', revision) end
  if action == 'd' then
    documents.delete(kind, name)
    return 'd0'
  end
  local new = documents.put(kind, name, value, ttl)
  return new and 'd' .. format('%.0f', new) or 'f0'
end

writers[#writers + 1] = function()
  for kind, shelf in pairs(kinds) do write_fields('documents:' .. kind, shelf.changed, shelf.values) end
  kinds = nil -- values may be large
end

-- @part xcom
-- What the XCom values of a tenant count for: what is stored of each, and COUNTED beside that.
-- 'xcom-bytes' holds the sum by tenant. The twin is in memory/state.py.
-- @share xcom
-- MOST: of one tenant, MAX_XCOM_BYTES in broker/requests.py.
-- @const MOST_XCOM=67108864
local sums, changed_sums, sizes
begins[#begins + 1] = function()
  sums, changed_sums, sizes = {}, {}, {} -- sizes: by field, of values that this call wrote or took away
end
xcom = {}

local function size_of(field)
  if not sizes[field] then
    local length = call('HSTRLEN', prefix .. 'xcom', field)
    sizes[field] = length > 0 and COUNTED + length or 0
  end
  return sizes[field]
end

local function add(field, size)
  local tenant, by = match(field, '^[^\31]*'), size - size_of(field)
  if sums[tenant] == nil then sums[tenant] = tonumber(call('HGET', prefix .. 'xcom-bytes', tenant) or 0) end
  if by > 0 and sums[tenant] + by > MOST_XCOM then return false end
  sums[tenant], changed_sums[tenant], sizes[field] = sums[tenant] + by, true, size
  return true
end

-- Count a value, by what will be stored of it; whether there is room.
function xcom.put(field, stored) return add(field, COUNTED + #stored) end
function xcom.drop(field) add(field, 0) end

writers[#writers + 1] = function()
  local texts = {}
  for tenant, sum in pairs(sums) do texts[tenant] = sum > 0 and format('%.0f', sum) end
  write_fields('xcom-bytes', changed_sums, texts)
end
