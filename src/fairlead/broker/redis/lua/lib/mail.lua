-- mail: letters to incarnations, kept until they are confirmed.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
local letters -- by incarnation, of this call
local MAX_LETTERS = 10000
-- @each
letters = {}
-- @end

-- Put a letter into an incarnation's mailbox; of too many the oldest is dropped.
send = function(name, kind, id, state, token)
  M.letters = next_number(M.letters)
  letters[name] = letters[name] or {}
  local text = concat({ format('%.0f', M.letters), kind, id, state, format('%.0f', token) }, SEP)
  letters[name][#letters[name] + 1] = text
  if not at_of(idle_ends, name) then keep_incarnation(name) end
end

writers[#writers + 1] = function()
  for name, texts in pairs(letters) do
    local key = P .. 'mail:' .. name
    write_all('RPUSH', key, texts)
    local many = call('LLEN', key) + #texts - MAX_LETTERS
    if many > 0 then write('LPOP', key, many) end
    if call('EXISTS', P .. 'mailbell:' .. name) == 0 then write('RPUSH', P .. 'mailbell:' .. name, 1) end
  end
end

-- Nobody will read it any more, not even what was written in this call.
function drop_mail(name)
  letters[name] = nil
  write('UNLINK', P .. 'mail:' .. name)
  write('UNLINK', P .. 'mailbell:' .. name)
end
