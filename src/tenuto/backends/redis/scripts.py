"""The Lua scripts of a Redis or Valkey store: one for each verb, each of them atomic.

The data of a tenant is in seven keys with one hash tag, so that a script runs on one node:

    heads     hash  field -> metadata of a key, without its value; and "clock" -> format (2: a stream was trimmed) and last time
    values    hash  field -> the value of a record that is not a tombstone
    order     zset  fields of `values`, all with score 0, so that they sort as bytes
    entries   hash  number and field of a stream -> one entry
    floors    hash  scope -> the highest version of any key that was purged in it
    requests  zset  request id and its outcome, score 0: looked up and removed in order of time
    due       zset  field -> when a record expires, or a tombstone may be purged

A field is a key without its tenant. A head has kind (0 record, 1 tombstone, 2 stream), version (of a
stream: its last number), written, expires (0: never; of a stream: how many entries were trimmed), the length of the scope within the field, and a
digest (of the value; of a stream: of its last entry). It ends with a seal over all of this and the field,
which scripts verify. Decisions never read values.

`commit_lua` has the commit. Time is the server's unless the client supplies it. If the server's clock is behind the
last commit by less than 15 minutes (a promoted replica), the last commit's time is used.
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple


class Script(NamedTuple):
    """A script and the name under which a server caches it."""

    text: bytes
    sha: bytes


def script(*parts: str) -> Script:
    """Concatenate parts into a script."""
    text = "\n".join(parts).encode()
    return Script(text, hashlib.sha1(text).hexdigest().encode())  # noqa: S324 - Redis names scripts by SHA-1


COMMON: Final = """
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
  return clock and string.byte(clock) > 2
end
"""

READ: Final = script(
    COMMON,
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

SCAN: Final = script(
    COMMON,
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
  local known, live, known_heads = fetch(heads, page), {}, {}
  for i, field in ipairs(page) do
    local head = known[i]
    local expires = head and #head > 27 and struct.unpack('>d', head, 18) or 0
    if not (expires > 0 and expires <= now) then
      live[#live + 1] = field
      known_heads[#known_heads + 1] = head or ''
    end
  end
  local found = fetch(values, live)
  for i, field in ipairs(live) do
    out[#out + 1] = field
    out[#out + 1] = known_heads[i]
    out[#out + 1] = found[i]
  end
  left = left - #live
  if #page < asked then break end
  if up then low = '(' .. page[#page] else high = '(' .. page[#page] end
end
return out
""",
)

ENTRIES: Final = script(
    COMMON,
    """
-- ARGV: stream, after ('' none), limit, direction. Returns the head, then the number and each entry.
local found = redis.call('HMGET', heads, 'clock', ARGV[1])
if newer(found[1]) then return {'newer'} end
local head = found[2]
if not head then return {''} end
local last = struct.unpack('>d', head, 2)
local gone = #head > 27 and struct.unpack('>d', head, 18) or 0
local limit = tonumber(ARGV[3])
local from, to, step
if ARGV[4] == 'up' then
  from = math.max(gone, tonumber(ARGV[2]) or 0) + 1
  to, step = math.min(last, from + limit - 1), 1
else
  from = math.min(last, (tonumber(ARGV[2]) or (last + 1)) - 1)
  to, step = math.max(gone + 1, from - limit + 1), -1
end
local fields = {}
for n = from, to, step do fields[#fields + 1] = struct.pack('>d', n) .. ARGV[1] end
local out = fetch(entries, fields)
table.insert(out, 1, head)
return out
""",
)

AUDIT: Final = script(
    COMMON,
    """
-- ARGV: fields. Returns the head, value and score in the order of each, from one snapshot.
local out = {}
for _, field in ipairs(ARGV) do
  out[#out + 1] = redis.call('HGET', heads, field)
  out[#out + 1] = redis.call('HGET', values, field)
  out[#out + 1] = redis.call('ZSCORE', order, field)
end
return out
""",
)

STRAY: Final = script(
    COMMON,
    """
-- ARGV: cursor, page size. Returns the next cursor, then the field of each entry that no stream reaches.
local page = redis.call('HSCAN', entries, ARGV[1], 'COUNT', ARGV[2])
local out = {page[1]}
for i = 1, #page[2], 2 do
  local field = page[2][i]
  local head = redis.call('HGET', heads, string.sub(field, 9))
  local last = head and #head > 27 and string.byte(head) == 2 and struct.unpack('>d', head, 2) or 0
  local gone = last > 0 and struct.unpack('>d', head, 18) or 0
  local number = #field >= 9 and struct.unpack('>d', field) or 0
  if number > last or number <= gone then out[#out + 1] = field end
end
return out
""",
)

COUNT: Final = script(
    COMMON,
    """
-- Returns the number of values, ordered fields, entries, floors and requests, from one snapshot.
return {redis.call('HLEN', values), redis.call('ZCARD', order), redis.call('HLEN', entries),
        redis.call('HLEN', floors), redis.call('ZCARD', requests)}
""",
)

STREAMS: Final = script(
    COMMON,
    """
-- ARGV: cursor, page size, the prefix of the fields. Returns the next cursor, then the fields of streams.
local page = redis.call('HSCAN', heads, ARGV[1], 'COUNT', ARGV[2])
local out = {page[1]}
for i = 1, #page[2], 2 do
  local field, head = page[2][i], page[2][i + 1]
  if field ~= 'clock' and #head > 27 and string.byte(head) == 2 and string.sub(field, 1, #ARGV[3]) == ARGV[3] then
    out[#out + 1] = field
  end
end
return out
""",
)

MOVE: Final = script(
    COMMON,
    """
-- ARGV: format, time, number of fields, then each field and the head that it must have ('' none); number of heads to
-- set, each field and head; number of values, each field and value; number of entries, each name and entry; number of
-- names of entries to delete, each; number of due times, each time and field; fields to remove from due.
-- Returns 'ok', or 'changed' if a head differs: then nothing was written.
local at = 3
local function take(width)
  local count, out = tonumber(ARGV[at]), {}
  for i = 1, count * width do out[i] = ARGV[at + i] end
  at = at + count * width + 1
  return out
end
local expected, fields = take(2), {}
for i = 1, #expected, 2 do fields[#fields + 1] = expected[i] end
local clock = redis.call('HGET', heads, 'clock')
if newer(clock) then return {'newer'} end
for i, raw in ipairs(fetch(heads, fields)) do
  if (raw or '') ~= expected[2 * i] then return {'changed'} end
end
local format = math.max(tonumber(ARGV[1]), clock and string.byte(clock) or 1)
local new_heads, new_values, new_entries, gone, due_at, live = take(2), take(2), take(2), take(1), take(2), take(1)
new_heads[#new_heads + 1] = 'clock'
new_heads[#new_heads + 1] = string.char(format) .. struct.pack('>d', time(ARGV[2], clock))
many('HDEL', entries, gone)
many('HSET', heads, new_heads)
many('HSET', values, new_values)
many('HSET', entries, new_entries)
local ordered = {}
for i = 1, #new_values, 2 do
  ordered[#ordered + 1] = 0
  ordered[#ordered + 1] = new_values[i]
end
many('ZADD', order, ordered)
many('ZADD', due, due_at)
many('ZREM', due, live)
return 'ok'
""",
)

FLOORS: Final = script(COMMON, "-- ARGV: scopes. Returns the floor of each.\nreturn fetch(floors, ARGV)\n")
