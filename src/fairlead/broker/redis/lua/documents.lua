-- documents: some of a kind by name, or a part of all in the order of their names.
--
-- ARGV     clock, kind, how many at most (0: those that are named), behind which name or '', names
-- Returns  the time; how many of the names were looked at; whether there are more behind these; the last name that
--          was looked at; name and what is stored (documents.documents) of each
-- @reads
-- @include call.split call.plan call.keep_clock
keep_clock()
local kind, limit, from = ARGV[2], tonumber(ARGV[3]), ARGV[4]
local names
if limit == 0 then
  names = { unpack(ARGV, 5) }
else
  from = from == '' and '-' or '(' .. from
  names = call('ZRANGEBYLEX', prefix .. 'document-names:' .. kind, from, '+', 'LIMIT', 0, limit + 1)
end
local most = limit == 0 and #names or min(limit, #names)
local reply, looked, bytes = { exact(now), 0, 0, '' }, 0, 0
while looked < most and bytes < BUDGET do
  looked = looked + 1
  local name = names[looked]
  local stored = call('HGET', prefix .. 'documents:' .. kind, name)
  local till = stored and #stored >= 24 and select(3, unpacked('<ddd', stored))
  if till and (till == 0 or till > now) then
    bytes = bytes + #stored
    reply[#reply + 1], reply[#reply + 2] = name, stored
  end
end
reply[2], reply[3], reply[4] = looked, looked < #names and 1 or 0, names[looked] or ''
return reply
