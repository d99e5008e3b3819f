-- delete_documents: the same as write_documents for a call that only deletes, which also a full server carries out.
--
-- ARGV     as of write_documents
-- Returns  the same
-- @flags allow-oom
-- @library upkeep
-- @include engine documents.documents call.once
local kept = once('documents', tostring)
if kept then return kept end
local answers = {}
for i = 4, #ARGV, 6 do answers[#answers + 1] = documents.change(i) end
return answer(concat(answers, '\30'))
