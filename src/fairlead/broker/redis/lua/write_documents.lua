-- write_documents: write documents, or delete some beside.
--
-- ARGV     clock, incarnation, number; six for each: kind, name, what to do ('w' write, 'd' delete), value, ttl or '',
--          revision or ''
-- Returns  by RS a letter and the revision of each: d done, s stale, f full
-- @library upkeep
-- @include engine documents.documents call.once
local kept = once('documents', tostring)
if kept then return kept end
local answers = {}
for i = 4, #ARGV, 6 do answers[#answers + 1] = documents.change(i) end
return answer(concat(answers, '\30'))
