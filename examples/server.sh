#!/bin/sh
# The JSON API of a tenuto server with curl alone: set, get with ETag, conflict, idempotent retry, watch, answer a question.
#
#   tenuto serve --url agents.db &
#   URL=http://127.0.0.1:8377 KEY=tk_… sh examples/server.sh
set -eu

call() { curl --silent --show-error --header "Authorization: Bearer $KEY" --header 'Content-Type: application/json' "$@"; }
status() { call --output /dev/null --write-out '%{http_code}\n' "$@"; }

echo "set a value:"
call "$URL/v1/state/set" --data '{"scope": "research", "key": "pages", "value": 30}'; echo

echo "get it, with its version as ETag:"
call --dump-header - "$URL/v1/state/get?scope=research&key=pages" | grep -i -o -e '^etag: "[0-9]*"' -e '"value":[0-9]*'

echo "unchanged since version 1:"
status --header 'If-None-Match: "1"' "$URL/v1/state/get?scope=research&key=pages"

echo "write at version 1, then too late at version 1 again:"
status --header 'If-Match: "1"' "$URL/v1/state/set" --data '{"scope": "research", "key": "pages", "value": 31}'
status --header 'If-Match: "1"' "$URL/v1/state/set" --data '{"scope": "research", "key": "pages", "value": 99}'

echo "append a message, and send the same request again:"
for attempt in first again; do
    call --header 'Idempotency-Key: msg-1' "$URL/v1/thread/append" --data '{"thread": "t", "content": "hello"}'; echo
done

echo "watch the scope from the beginning (server-sent events):"
call --no-buffer "$URL/v1/state/watch?scope=research&after=0&timeout=0.2s" | grep -o -e '^id: [0-9]*'

echo "answer the open questions:"
for question in $(call "$URL/v1/inbox/list" | grep -o '"id":"[^"]*"' | cut -d '"' -f 4); do
    call "$URL/v1/inbox/answer" --data "{\"question\": \"$question\", \"answer\": \"approve\", \"by\": \"ann\"}" |
        grep -o -m 1 -e '"status":"[a-z]*"'
done
