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
first write and lets later ones pass. Numbers are doubles in Lua: versions are exact up to 2^53, and one
beyond is refused. Time is the server's unless the client brings its own; a server whose clock is behind
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
-- something in any case, count of checks; three for each check: r or s, field, version;
-- six for each write: p, d or a, field, length of its scope, digest, time to live, value.
local LIFE = 3600
local request, content, budget = ARGV[2], ARGV[4], tonumber(ARGV[5])
local checks = tonumber(ARGV[7])
local first = 8 + 3 * checks

local fields, at = {'clock'}, {}
local function want(field)
  if not at[field] then
    fields[#fields + 1] = field
    at[field] = #fields
  end
end
for i = 8, first - 1, 3 do want(ARGV[i + 1]) end
for i = first, #ARGV, 6 do want(ARGV[i + 1]) end
local found = fetch(heads, fields)
local clock = found[1]
if newer(clock) then return {'newer'} end
local now = time(ARGV[1], clock)
local stamp = string.char(1) .. struct.pack('>d', now)

-- a request that was applied before is answered before anything is checked
if request ~= '' then
  local known = redis.call('ZRANGEBYLEX', requests, '[' .. request, '(' .. request .. 'g', 'LIMIT', 0, 1)[1]
  if known then
    local body = string.sub(known, 33)
    if string.sub(known, 17, 32) ~= string.sub(redis.sha1hex(body .. request), 1, 16) then
      return {'damaged', ''}
    end
    if string.sub(body, 1, 16) ~= content then return {'reused'} end
    if ARGV[6] == '1' then redis.call('HSET', heads, 'clock', stamp) end
    return {'repeated', string.sub(body, 17, 24), string.sub(body, 25)}
  end
  if now - tonumber(ARGV[3]) > LIFE then return {'old'} end
end

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
for i = 8, first - 1, 3 do
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
  if version > 9007199254740992 then return {'range'} end
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
  local op, field, scope = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
  local one = head(field)
  n = n + 1
  if op == 'a' then
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

-- whoever watches a stream has subscribed to its channel; where this is not permitted he polls
for field in pairs(last) do
  local heard = redis.pcall('PUBSUB', 'NUMSUB', heads .. ':' .. field)
  if heard[2] and heard[2] ~= 0 then redis.pcall('PUBLISH', heads .. ':' .. field, '') end
end

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
return {'done', written, told}
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
