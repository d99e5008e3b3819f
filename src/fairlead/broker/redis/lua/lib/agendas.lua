-- agendas: write what changed in them.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
function write_agendas()
  for _, a in pairs(agendas) do
    if a.changed then
      local adds, drops, n = {}, {}, 0
      for member, at in pairs(a.over) do
        if at then
          adds[n + 1], adds[n + 2] = at, member
          n = n + 2
        else
          drops[#drops + 1] = member
        end
      end
      -- What can be undone can be done first, see lib/close.
      local first = not sound[a.key]
      if n > 0 then push_all('ZADD', a.key, adds, not (first and a.new == n / 2)) end
      if #drops > 0 then push_all('ZREM', a.key, drops, not (first and a.released == #drops)) end
      if a.becomes then write('RENAMENX', a.key, P .. a.becomes) end -- something is left in it: see lib/detach
    end
  end
end
