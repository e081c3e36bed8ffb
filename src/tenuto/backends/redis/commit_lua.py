"""The Lua that a Redis or Valkey store runs: one script for each verb, each of them atomic.

Everything of a tenant lies in seven keys with one hash tag, so that a script stays on one node:

    heads     hash  field -> what is known of a key, without its value; and "clock" -> format and last time
    values    hash  field -> the value of a record that has not ended
    order     zset  fields of `values`, all with score 0, so that they sort as bytes
    entries   hash  number and field of a stream -> one entry
    floors    hash  scope -> the highest version of any key that was let go in it
    requests  zset  request id and its outcome, score 0: found and swept in the order of their time
    due       zset  field -> when a record expires, or a tombstone may be let go

A field is a key without its tenant. A head says kind (0 record, 1 tombstone, 2 stream), version (of a
stream: its last number), written, expires (0: never), the length of the scope within the field, and a
digest (of the value; of a stream: of its last entry). It ends with a seal over all of this and the field,
so that a script believes a head only if it is what was written. Values are never read to decide.

A script that fails halfway is not rolled back. So COMMIT decides everything before its first write, and
nothing that it does afterwards can fail: types are known, and when memory is full the server refuses the
first write and lets later ones pass. The commit that is made most has a short way of its own, which leaves
the same bytes behind. Numbers are doubles in Lua: versions are exact up to 2^53, and one beyond is refused. Time is the server's unless the client brings its own; a server whose clock is behind
the last commit by less than a quarter of an hour (a promoted replica) is held at that commit's time.
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple


class Script(NamedTuple):
    """A script and the name under which a server keeps it."""

    text: bytes
    sha: bytes


def _script(*parts: str) -> Script:
    text = "\n".join(parts).encode()
    return Script(text, hashlib.sha1(text).hexdigest().encode())  # noqa: S324 - it is how servers name scripts


FORMAT: Final = 1
MOST: Final = 2**53
"""The highest version: beyond it Lua's numbers are no longer exact."""

_COMMON: Final = """
local heads, values, order, entries, floors, requests, due = unpack(KEYS)

local function many(command, key, list)
  if #list == 0 then return end
  if #list <= 1000 then return redis.call(command, key, unpack(list)) end
  for i = 1, #list, 1000 do
    redis.call(command, key, unpack(list, i, math.min(i + 999, #list)))
  end
end

local function fetch(key, fields)
  if #fields == 0 then return {} end
  if #fields <= 1000 then return redis.call('HMGET', key, unpack(fields)) end
  local found = {}
  for i = 1, #fields, 1000 do
    local last = math.min(i + 999, #fields)
    local part = redis.call('HMGET', key, unpack(fields, i, last))
    for j = 1, last - i + 1 do found[i + j - 1] = part[j] end
  end
  return found
end

local function time(given, clock)
  if given ~= '' then return tonumber(given) end
  local t = redis.call('TIME')
  local now = tonumber(t[1]) + tonumber(t[2]) / 1000000
  if clock then
    local last = struct.unpack('>d', clock, 2)
    if last > now and last - now < 900 then return last end
  end
  return now
end

local function newer(clock)
  return clock and string.byte(clock) > 1
end
"""

READ: Final = _script(
    _COMMON,
    """
-- ARGV: time, fields. Returns time, then the head of each field, then the value of each.
local fields = {'clock'}
for i = 2, #ARGV do fields[i] = ARGV[i] end
local out = fetch(heads, fields)
if newer(out[1]) then return {'newer'} end
out[1] = struct.pack('>d', time(ARGV[1], out[1]))
table.remove(fields, 1)
local found = fetch(values, fields)
local n = #fields
for i = 1, n do out[n + 1 + i] = found[i] end
return out
""",
)

SCAN: Final = _script(
    _COMMON,
    """
-- ARGV: time, low, high, limit, direction. Returns time, then field, head and value of each live record.
local clock = redis.call('HGET', heads, 'clock')
if newer(clock) then return {'newer'} end
local now = time(ARGV[1], clock)
local low, high, left = ARGV[2], ARGV[3], tonumber(ARGV[4])
local up = ARGV[5] == 'up'
local out = {struct.pack('>d', now)}
while left > 0 do
  local asked = math.min(left, 500)
  local page
  if up then
    page = redis.call('ZRANGEBYLEX', order, low, high, 'LIMIT', 0, asked)
  else
    page = redis.call('ZREVRANGEBYLEX', order, high, low, 'LIMIT', 0, asked)
  end
  if #page == 0 then break end
  local known, live, kept = fetch(heads, page), {}, {}
  for i, field in ipairs(page) do
    local head = known[i]
    local expires = head and #head > 27 and struct.unpack('>d', head, 18) or 0
    if not (expires > 0 and expires <= now) then
      live[#live + 1] = field
      kept[#kept + 1] = head or ''
    end
  end
  local found = fetch(values, live)
  for i, field in ipairs(live) do
    out[#out + 1] = field
    out[#out + 1] = kept[i]
    out[#out + 1] = found[i]
  end
  left = left - #live
  if #page < asked then break end
  if up then low = '(' .. page[#page] else high = '(' .. page[#page] end
end
return out
""",
)

ENTRIES: Final = _script(
    _COMMON,
    """
-- ARGV: stream, after ('' none), limit, direction. Returns the head, then the number and each entry.
local found = redis.call('HMGET', heads, 'clock', ARGV[1])
if newer(found[1]) then return {'newer'} end
local head = found[2]
if not head then return {''} end
local last = struct.unpack('>d', head, 2)
local limit = tonumber(ARGV[3])
local from, to, step
if ARGV[4] == 'up' then
  from = (tonumber(ARGV[2]) or 0) + 1
  to, step = math.min(last, from + limit - 1), 1
else
  from = math.min(last, (tonumber(ARGV[2]) or (last + 1)) - 1)
  to, step = math.max(1, from - limit + 1), -1
end
local fields = {}
for n = from, to, step do fields[#fields + 1] = struct.pack('>d', n) .. ARGV[1] end
local out = fetch(entries, fields)
table.insert(out, 1, head)
return out
""",
)

COMMIT: Final = _script(
    _COMMON,
    """
-- ARGV: time, request ('' none), when the request was made, its content, how much to sweep, 1 to write
-- something in any case, 1 if the request was never sent before, count of checks;
-- three for each check: r or s, field, version;
-- six for each write: p, d or a, field, length of its scope, digest, time to live, value;
-- or f, field, length of its scope, the first and the last number to forget, nothing.
-- Returns d (or r for a request applied before), time and versions; or a list that says why it did nothing.
local LIFE, MOST = 3600, 9007199254740992
local request, content, budget = ARGV[2], ARGV[4], tonumber(ARGV[5])
local checks = tonumber(ARGV[8])
local first = 9 + 3 * checks

-- whoever watches a stream has subscribed to its channel; where this is not permitted he polls
local function ring(stream)
  local heard = redis.pcall('PUBSUB', 'NUMSUB', heads .. ':' .. stream)
  if heard[2] and heard[2] ~= 0 then redis.pcall('PUBLISH', heads .. ':' .. stream, '') end
end

-- The commit that is made most: one record is put, one entry appended, or both, and nothing is checked but
-- that record. If all of it is there already, and whole, this is all that there is to do. Else nothing has
-- been done yet, and what follows decides.
local function in_short()
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
  if request ~= '' and now - tonumber(ARGV[3]) > LIFE then return end

  local told, version, number, previous, before, body
  if put then
    body = sub(own, 1, -17)
    local kind, held, _, expires = unpack('>BdddH', body)
    if kind ~= 0 or expires ~= 0 or held >= MOST or (checks == 1 and held ~= tonumber(ARGV[11])) then return end
    if sub(sha(body .. field), 1, 16) ~= sub(own, -16) then return end
    version = held + 1
    told = string.format('%.0f', version)
  end
  if add then
    body = sub(tip, 1, -17)
    local kind, held, written = unpack('>BdddH', body)
    if kind ~= 2 or held >= MOST or sub(sha(body .. stream), 1, 16) ~= sub(tip, -16) then return end
    number, before, previous = held + 1, math.max(now, written), sub(body, 28)
    told = (told and told .. ',' or '') .. string.format('%.0f', number)
  end

  local stamp = string.char(1) .. pack('>d', now)
  if put then
    body = pack('>BdddH', 0, version, now, 0, tonumber(ARGV[put + 2])) .. ARGV[put + 3]
    own = body .. sub(sha(body .. field), 1, 16)
  end
  if add then
    local entry = pack('>ddH', number, before, #told) .. told .. previous .. ARGV[add + 3]
    local chained = sub(sha(entry .. stream), 1, 32)
    body = pack('>BdddH', 2, number, before, 0, tonumber(ARGV[add + 2])) .. chained
    tip = body .. sub(sha(body .. stream), 1, 16)
    -- from here on it is written
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
  if request ~= '' then
    body = content .. sub(stamp, 2) .. told
    call('ZADD', requests, 0, request .. sub(sha(body .. request), 1, 16) .. body)
  end
  if add then ring(stream) end
  return 'd' .. sub(stamp, 2) .. told
end
if budget == 0 and (request == '' or ARGV[7] == '1') and ARGV[6] == '0' and #ARGV > first then
  local done = in_short()
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
local stamp = string.char(1) .. struct.pack('>d', now)

-- a request that was applied before is answered before anything is checked
if request ~= '' and ARGV[7] ~= '1' then
  local known = redis.call('ZRANGEBYLEX', requests, '[' .. request, '(' .. request .. 'g', 'LIMIT', 0, 1)[1]
  if known then
    local body = string.sub(known, 33)
    if string.sub(known, 17, 32) ~= string.sub(redis.sha1hex(body .. request), 1, 16) then
      return {'damaged', ''}
    end
    if string.sub(body, 1, 16) ~= content then return {'reused'} end
    if ARGV[6] == '1' then redis.call('HSET', heads, 'clock', stamp) end
    return 'r' .. string.sub(body, 17)
  end
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

-- every check
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
if #different > 1 then return different end

-- every version
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
local told = {}
for i, version in ipairs(versions) do told[i] = string.format('%.0f', version) end
told = table.concat(told, ',')

-- everything that will be written, without writing
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
        local kept = string.sub(raw, 1, size + 98)
        set_entries[#set_entries + 1] = wanted[j]
        set_entries[#set_entries + 1] = kept .. string.sub(redis.sha1hex('forgotten' .. kept .. field), 1, 32)
      end
    end
  end
end
for i = first, #ARGV, 6 do
  local op, field, scope = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
  local one = head(field)
  n = n + 1
  if op == 'f' then
    scope = nil  -- done above: what this commit adds is not forgotten by it
  elseif op == 'a' then
    local when = math.max(now, one.written)
    local previous = one.digest or string.rep('0', 32)
    local body = struct.pack('>ddH', versions[n], when, #told) .. told .. previous .. ARGV[i + 3]
    local own = string.sub(redis.sha1hex(body .. field), 1, 32)
    set_entries[#set_entries + 1] = struct.pack('>d', versions[n]) .. field
    set_entries[#set_entries + 1] = body .. own .. ARGV[i + 5]
    one.written, one.digest, one.scope = when, own, scope
    if versions[n] == last[field] then
      set_heads[#set_heads + 1] = field
      set_heads[#set_heads + 1] = sealed(field, 2, versions[n], when, 0, scope, own)
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

-- from here on it is written. Where nothing is added, what makes room comes first: then it is let pass
-- also when memory is full.
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
  local body = content .. written .. told
  redis.call('ZADD', requests, 0, request .. string.sub(redis.sha1hex(body .. request), 1, 16) .. body)
end

for field in pairs(last) do ring(field) end

-- a little of what is over is let go: more than a commit leaves behind, and never much
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
      -- the floor first: a key made anew starts above every version that was ever seen
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
return 'd' .. written .. told
""",
)

AUDIT: Final = _script(
    _COMMON,
    """
-- ARGV: fields. Returns the head, value and score in the order of each, from one moment.
local out = {}
for _, field in ipairs(ARGV) do
  out[#out + 1] = redis.call('HGET', heads, field)
  out[#out + 1] = redis.call('HGET', values, field)
  out[#out + 1] = redis.call('ZSCORE', order, field)
end
return out
""",
)

STRAY: Final = _script(
    _COMMON,
    """
-- ARGV: cursor, how many to look at. Returns the next cursor, then the field of each entry that no stream reaches.
local page = redis.call('HSCAN', entries, ARGV[1], 'COUNT', ARGV[2])
local out = {page[1]}
for i = 1, #page[2], 2 do
  local field = page[2][i]
  local head = redis.call('HGET', heads, string.sub(field, 9))
  local last = head and #head > 27 and string.byte(head) == 2 and struct.unpack('>d', head, 2) or 0
  if #field < 9 or struct.unpack('>d', field) > last then out[#out + 1] = field end
end
return out
""",
)

COUNT: Final = _script(
    _COMMON,
    """
-- Returns how many values, ordered fields, entries, floors and requests there are, from one moment.
return {redis.call('HLEN', values), redis.call('ZCARD', order), redis.call('HLEN', entries),
        redis.call('HLEN', floors), redis.call('ZCARD', requests)}
""",
)
