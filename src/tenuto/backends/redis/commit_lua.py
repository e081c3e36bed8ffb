"""The Lua script of a commit: one script, on one node, atomic.

A script that fails halfway is not rolled back. So it decides everything before its first write, and no later write
can fail: types are known, and when memory is full the server refuses the first write but accepts later ones. The most
common commit has a fast path, which leaves the same bytes. Numbers are doubles in Lua: versions are exact up to 2^53,
and higher ones are refused.

A request id is applied once, in whatever order its sendings arrive: TCP may deliver a sending that the client gave up
after a later one. So every sending is looked up. An id whose outcome is no longer recorded is refused, by the time in
it. If a sending after the first fails its checks, that is recorded with the client's time of the sending (after a `!`,
in place of versions). An earlier sending must then not be applied, because its failure was reported. A
later one is decided again.
"""

from __future__ import annotations

from typing import Final

from tenuto.backends.redis.scripts import COMMON, script

COMMIT: Final = script(
    COMMON,
    """
-- ARGV: time, request ('' none), when the request was made, its content, number of keys to sweep, 1 to write
-- something in any case, when the request was sent ('' for its first sending), number of checks;
-- three for each check: r or s, field, version;
-- six for each write: p, d or a, field, length of its scope, digest, time to live, value;
-- P for a first write with the same value as the last write, which is sent once;
-- or f, field, length of its scope, the first and the last number to forget, nothing.
-- Returns d (or r for a request applied before), time and versions; or a list with the reason for rejecting it.
local LIFE, MOST = 3600, 9007199254740992
local request, content, budget = ARGV[2], ARGV[4], tonumber(ARGV[5])
local checks = tonumber(ARGV[8])
local first = 9 + 3 * checks
if ARGV[first] == 'P' then ARGV[first], ARGV[first + 5] = 'p', ARGV[#ARGV] end

-- the recorded outcome of the request, sealed
local function recorded()
  if request == '' then return end
  return redis.call('ZRANGEBYLEX', requests, '[' .. request, '(' .. request .. 'g', 'LIMIT', 0, 1)[1]
end
local function remember(outcome)
  local body = content .. outcome
  redis.call('ZADD', requests, 0, request .. string.sub(redis.sha1hex(body .. request), 1, 16) .. body)
end

-- watchers subscribe to the stream's channel; where PUBSUB is not permitted, they poll
local function ring(stream)
  local heard = redis.pcall('PUBSUB', 'NUMSUB', heads .. ':' .. stream)
  if heard[2] and heard[2] ~= 0 then redis.pcall('PUBLISH', heads .. ':' .. stream, '') end
end

-- Fast path for the most common commit: one put, one append, or both, and no check except of that record.
-- If the heads exist and are valid, it completes the commit. Otherwise it has written nothing, and the
-- general path decides.
local function fast_path()
  local put, add = ARGV[first] == 'p' and first, #ARGV - 5
  if ARGV[add] ~= 'a' then add = nil end
  if #ARGV - first + 1 ~= (put and 6 or 0) + (add and 6 or 0) or (put and ARGV[put + 4] ~= '') then return end
  if checks > 0 and (checks > 1 or not put or ARGV[9] ~= 'r' or ARGV[10] ~= ARGV[put + 1]) then return end
  local sha, sub, pack, unpack, call = redis.sha1hex, string.sub, struct.pack, struct.unpack, redis.call
  local field, stream = put and ARGV[put + 1], add and ARGV[add + 1]
  local found = call('HMGET', heads, 'clock', field or stream, stream or field)
  local clock, own, tip = found[1], found[2], found[3]
  if not (clock and own and tip) or newer(clock) or #own < 59 or #tip < 59 then return end
  local now = time(ARGV[1], clock)
  if request ~= '' and (now - tonumber(ARGV[3]) > LIFE or recorded()) then return end

  local assigned, version, number, previous, before, body, trimmed
  if put then
    body = sub(own, 1, -17)
    local kind, held, _, expires = unpack('>BdddH', body)
    if kind ~= 0 or expires ~= 0 or held >= MOST or (checks == 1 and held ~= tonumber(ARGV[11])) then return end
    if sub(sha(body .. field), 1, 16) ~= sub(own, -16) then return end
    version = held + 1
    assigned = string.format('%.0f', version)
  end
  if add then
    body = sub(tip, 1, -17)
    local kind, held, written, gone = unpack('>BdddH', body)
    trimmed = gone
    if kind ~= 2 or held >= MOST or sub(sha(body .. stream), 1, 16) ~= sub(tip, -16) then return end
    number, before, previous = held + 1, math.max(now, written), sub(body, 28)
    assigned = (assigned and assigned .. ',' or '') .. string.format('%.0f', number)
  end

  local stamp = sub(clock, 1, 1) .. pack('>d', now)
  if put then
    body = pack('>BdddH', 0, version, now, 0, tonumber(ARGV[put + 2])) .. ARGV[put + 3]
    own = body .. sub(sha(body .. field), 1, 16)
  end
  if add then
    local entry = pack('>ddH', number, before, #assigned) .. assigned .. previous .. ARGV[add + 3]
    local chained = sub(sha(entry .. stream), 1, 32)
    body = pack('>BdddH', 2, number, before, trimmed, tonumber(ARGV[add + 2])) .. chained
    tip = body .. sub(sha(body .. stream), 1, 16)
    -- decided: write
    if put then
      call('HSET', heads, field, own, stream, tip, 'clock', stamp)
    else
      call('HSET', heads, stream, tip, 'clock', stamp)
    end
    call('HSET', entries, pack('>d', number) .. stream, entry .. chained .. ARGV[add + 5])
  else
    call('HSET', heads, field, own, 'clock', stamp)
  end
  if put then call('HSET', values, field, ARGV[put + 5]) end
  if request ~= '' then remember(sub(stamp, 2) .. assigned) end
  if add then ring(stream) end
  return 'd' .. sub(stamp, 2) .. assigned
end
if budget == 0 and ARGV[6] == '0' and #ARGV > first then
  local done = fast_path()
  if done then return done end
end

local fields, at = {'clock'}, {}
local function want(field)
  if not at[field] then
    fields[#fields + 1] = field
    at[field] = #fields
  end
end
for i = 9, first - 1, 3 do want(ARGV[i + 1]) end
for i = first, #ARGV, 6 do want(ARGV[i + 1]) end
local found = fetch(heads, fields)
local clock = found[1]
if newer(clock) then return {'newer'} end
local now = time(ARGV[1], clock)
local stamp = (clock and string.sub(clock, 1, 1) or string.char(1)) .. struct.pack('>d', now)

-- a request that was applied before is answered before the checks
local refused = recorded()
if refused then
  local body = string.sub(refused, 33)
  if string.sub(refused, 17, 32) ~= string.sub(redis.sha1hex(body .. request), 1, 16) then
    return {'damaged', ''}
  end
  if string.sub(body, 25, 25) ~= '!' then
    if string.sub(body, 1, 16) ~= content then return {'reused'} end
    if ARGV[6] == '1' then redis.call('HSET', heads, 'clock', stamp) end
    return 'r' .. string.sub(body, 17)
  end
  -- it arrives late, after a later sending reported to the caller that it was not applied
  if ARGV[7] == '' or tonumber(ARGV[7]) <= tonumber(string.sub(body, 26)) then return {'conflict'} end
end
if request ~= '' and now - tonumber(ARGV[3]) > LIFE then return {'old'} end

local damaged
local known = {}
local function parsed(field, raw)
  local head = {kind = -1, version = 0, written = 0, expires = 0, scope = 0}
  if raw then
    local body = string.sub(raw, 1, -17)
    if #raw < 59 or string.sub(redis.sha1hex(body .. field), 1, 16) ~= string.sub(raw, -16) then
      return nil
    end
    head.kind, head.version, head.written, head.expires, head.scope = struct.unpack('>BdddH', body)
    head.digest = string.sub(body, 28)
    head.live = head.kind == 0 and (head.expires == 0 or head.expires > now)
  end
  return head
end
local function head(field)
  local one = known[field]
  if not one then
    one = parsed(field, found[at[field]])
    if not one then
      damaged = field
      one = parsed(field, false)
    end
    known[field] = one
  end
  return one
end
local function sealed(field, kind, version, written, expires, scope, digest)
  local body = struct.pack('>BdddH', kind, version, written, expires, scope) .. digest
  return body .. string.sub(redis.sha1hex(body .. field), 1, 16)
end
local function floor(scope)
  local raw = redis.call('HGET', floors, scope)
  if not raw then return 0 end
  local text = string.sub(raw, 17)
  if string.sub(raw, 1, 16) ~= string.sub(redis.sha1hex(text .. scope), 1, 16) then damaged = scope end
  return tonumber(text) or 0
end

-- the checks
local different = {'conflict'}
for i = 9, first - 1, 3 do
  local field = ARGV[i + 1]
  local one = head(field)
  local actual = 0
  if ARGV[i] == 'r' then
    if one.live then actual = one.version end
  elseif one.kind == 2 then
    actual = one.version
  end
  if actual ~= tonumber(ARGV[i + 2]) then different[#different + 1] = field end
end
if damaged then return {'damaged', damaged} end
if #different > 1 then
  -- a sending that was given up before this one may still arrive
  if request ~= '' and ARGV[7] ~= '' then
    if refused then redis.call('ZREM', requests, refused) end
    remember(string.sub(stamp, 2) .. '!' .. ARGV[7])
  end
  return different
end

-- the new versions
local versions, last, adds = {}, {}, false
for i = first, #ARGV, 6 do
  local op, field = ARGV[i], ARGV[i + 1]
  local one = head(field)
  local version
  if op == 'a' then
    if one.kind == 0 or one.kind == 1 then return {'both'} end
    version = (last[field] or one.version) + 1
    last[field] = version
    adds = true
  elseif op == 'f' then
    if one.kind == 0 or one.kind == 1 then return {'both'} end
    version = tonumber(ARGV[i + 4])
  else
    if one.kind == 2 then return {'both'} end
    if op == 'p' then
      version = one.version
      if one.kind == -1 then version = floor(string.sub(field, 1, tonumber(ARGV[i + 2]))) end
      version = version + 1
      adds = true
    else
      version = one.version
      if one.live then version = version + 1 end
    end
  end
  if version > MOST then return {'range'} end
  versions[#versions + 1] = version
end
if damaged then return {'damaged', damaged} end
local assigned = {}
for i, version in ipairs(versions) do assigned[i] = string.format('%.0f', version) end
assigned = table.concat(assigned, ',')

-- prepare everything that will be written
local set_heads, set_values, set_entries = {}, {}, {}
local add_order, add_due, end_values, end_due = {}, {}, {}, {}
local written = struct.pack('>d', now)
local n = 0
for i = first, #ARGV, 6 do
  if ARGV[i] == 'f' and head(ARGV[i + 1]).kind == 2 then
    local field, wanted = ARGV[i + 1], {}
    for number = tonumber(ARGV[i + 3]), math.min(tonumber(ARGV[i + 4]), head(field).version) do
      wanted[#wanted + 1] = struct.pack('>d', number) .. field
    end
    for j, raw in ipairs(fetch(entries, wanted)) do
      local size = raw and #raw >= 18 and select(3, struct.unpack('>ddH', raw))
      if size and #raw >= size + 98 then
        local rest = string.sub(raw, 1, size + 98)
        set_entries[#set_entries + 1] = wanted[j]
        set_entries[#set_entries + 1] = rest .. string.sub(redis.sha1hex('forgotten' .. rest .. field), 1, 32)
      end
    end
  end
end
for i = first, #ARGV, 6 do
  local op, field, scope = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
  local one = head(field)
  n = n + 1
  if op == 'f' then
    scope = nil  -- done above, before this commit's own entries exist
  elseif op == 'a' then
    local when = math.max(now, one.written)
    local previous = one.digest or string.rep('0', 32)
    local body = struct.pack('>ddH', versions[n], when, #assigned) .. assigned .. previous .. ARGV[i + 3]
    local own = string.sub(redis.sha1hex(body .. field), 1, 32)
    set_entries[#set_entries + 1] = struct.pack('>d', versions[n]) .. field
    set_entries[#set_entries + 1] = body .. own .. ARGV[i + 5]
    one.written, one.digest, one.scope = when, own, scope
    if versions[n] == last[field] then
      set_heads[#set_heads + 1] = field
      set_heads[#set_heads + 1] = sealed(field, 2, versions[n], when, one.expires, scope, own)
    end
  elseif op == 'p' then
    local expires = 0
    if ARGV[i + 4] ~= '' then
      expires = now + tonumber(ARGV[i + 4])
      add_due[#add_due + 1] = string.format('%.17g', expires)
      add_due[#add_due + 1] = field
    elseif one.kind == 1 or one.expires > 0 then
      end_due[#end_due + 1] = field
    end
    set_heads[#set_heads + 1] = field
    set_heads[#set_heads + 1] = sealed(field, 0, versions[n], now, expires, scope, ARGV[i + 3])
    set_values[#set_values + 1] = field
    set_values[#set_values + 1] = ARGV[i + 5]
    if one.kind ~= 0 then
      add_order[#add_order + 1] = 0
      add_order[#add_order + 1] = field
    end
  elseif one.live then
    set_heads[#set_heads + 1] = field
    set_heads[#set_heads + 1] = sealed(field, 1, versions[n], now, 0, one.scope, string.rep('\\0', 16))
    end_values[#end_values + 1] = field
    add_due[#add_due + 1] = string.format('%.17g', now + LIFE)
    add_due[#add_due + 1] = field
  end
end

-- decided: write. If nothing is added, deletions come first: the server accepts them even when memory
-- is full.
if not adds then many('HDEL', values, end_values) end
if #set_heads > 0 or ARGV[6] == '1' then
  set_heads[#set_heads + 1] = 'clock'
  set_heads[#set_heads + 1] = stamp
end
many('HSET', heads, set_heads)
many('HSET', values, set_values)
many('HSET', entries, set_entries)
many('ZADD', order, add_order)
if adds then many('HDEL', values, end_values) end
many('ZREM', order, end_values)
many('ZADD', due, add_due)
many('ZREM', due, end_due)
if request ~= '' then
  remember(written .. assigned)
  if refused then redis.call('ZREM', requests, refused) end
end

for field in pairs(last) do ring(field) end

-- remove some expired data: more than a commit leaves, but never much
if budget > 0 then
  local cut = string.sub(struct.pack('>I8', math.max(0, math.floor((now - LIFE - 60) * 1000))), 3)
  many('ZREM', requests, redis.call('ZRANGEBYLEX', requests, '-', '(' .. cut, 'LIMIT', 0, budget))
  local over = redis.call('ZRANGEBYSCORE', due, '-inf', string.format('%.17g', now), 'LIMIT', 0, budget)
  for _, field in ipairs(over) do
    local one = parsed(field, redis.call('HGET', heads, field))
    if one and one.kind == 0 and one.expires > 0 and one.expires <= now then
      redis.call('HSET', heads, field,
        sealed(field, 1, one.version, one.written, 0, one.scope, string.rep('\\0', 16)))
      redis.call('HDEL', values, field)
      redis.call('ZREM', order, field)
      redis.call('ZADD', due, string.format('%.17g', now + LIFE), field)
    elseif one and one.kind == 1 then
      -- the floor first: a key that is created again starts above every version ever seen
      local scope = string.sub(field, 1, one.scope)
      local text = string.format('%.0f', math.max(floor(scope), one.version))
      redis.call('HSET', floors, scope, string.sub(redis.sha1hex(text .. scope), 1, 16) .. text)
      redis.call('HDEL', heads, field)
      redis.call('ZREM', due, field)
    elseif one then
      redis.call('ZREM', due, field)
    end
  end
end
return 'd' .. written .. assigned
""",
)
