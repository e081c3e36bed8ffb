"""The page of a question: GET shows it and changes nothing, POST decides. Plain HTML, readable on a phone, no script.

Programs that preview links only send GET, so they cannot answer for a person.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from typing import Any, Final
from urllib.parse import parse_qsl

from tenuto.capabilities._core.schemas import problems
from tenuto.capabilities.people import Question
from tenuto.errors import InvalidInput
from tenuto.operations.jsonable import jsonable

MEDIA: Final = "text/html; charset=utf-8"
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'",
    "Referrer-Policy": "same-origin",
}
_STYLE: Final = (
    "body{font:1.1rem/1.5 system-ui,sans-serif;max-width:40rem;margin:2rem auto;padding:0 1rem}"
    "pre{white-space:pre-wrap;background:#8881;padding:1rem;border-radius:.5rem}"
    "button,input,textarea{font:inherit;padding:.6rem 1rem;margin:.3rem 0;width:100%;box-sizing:border-box}"
)


def shown(question: Question, by: str, query: bytes = b"") -> bytes:
    """Return the page of a question, with a form while it is open; `?answer=` of a button's link focuses that choice."""
    parts = [f"<h1>{escape(question.text)}</h1>"]
    if question.context is not None:
        parts.append(f"<pre>{escape(_text(question.context))}</pre>")
    parts += [f"<p>{name}:</p><pre>{escape(_text(value))}</pre>" for name, value in _help(question)]
    if question.run:
        parts.append(f"<p>Asked by the run <b>{escape(question.run)}</b>.</p>")
    if question.deadline is not None:
        parts.append(f"<p>Answer before {escape(question.deadline.isoformat(timespec='minutes'))}.</p>")
    parts.append(_form(question, by, _focused(query)) if question.open else _outcome(question))
    return page(question.text, "".join(parts))


def page(title: str, content: str) -> bytes:
    """Return a whole page."""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style><main>{content}</main></html>"
    ).encode()


def decided(question: Question, body: bytes) -> Any:
    """Return the answer of a form."""
    try:
        given = dict(parse_qsl(body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=10))
    except ValueError:
        raise InvalidInput("The form is malformed. Nothing was written.") from None
    answer = given.get("answer", "")
    if question.choices is not None:
        number = given.get("choice", "")
        if not number.isdecimal() or not number.isascii() or int(number) >= len(question.choices):
            raise InvalidInput("Choose one of the answers. Nothing was written.")
        return question.choices[int(number)]
    if not answer.strip():
        raise InvalidInput("The answer is empty. Nothing was written.")
    if question.schema is not None and problems(question.schema, answer):
        try:
            return json.loads(answer)  # a number, yes or no, or an object; the inbox validates it
        except ValueError:
            return answer
    return answer


def _help(question: Question) -> Iterator[tuple[str, Any]]:
    """Yield what helps to decide besides the context."""
    if question.evidence:
        yield "Evidence", question.evidence
    if question.policy:
        yield "Policy", question.policy
    if question.blocks:
        yield "Blocked until the answer", question.blocks
    if question.last is not None:
        yield "Last time", {name: question.last[name] for name in ("text", "status", "answer", "by", "at")}
    if question.remembered:
        yield "Remembered", "\n".join(question.remembered)


def _focused(query: bytes) -> str | None:
    try:
        return dict(parse_qsl(query.decode("ascii"), max_num_fields=10)).get("answer")
    except ValueError:
        return None


def _form(question: Question, by: str, focused: str | None) -> str:
    name = f"<p>You answer as <b>{escape(by)}</b>.</p>"
    if question.choices is None:
        field = '<label>Answer<textarea name="answer" rows="4" required></textarea></label><button>Send</button>'
        wanted = (
            "" if question.schema is None else f"<p>As JSON that fits:</p><pre>{escape(_text(question.schema))}</pre>"
        )
        return f'<form method="post">{name}{wanted}{field}</form>'
    buttons = "".join(
        f'<button name="choice" value="{at}"{" autofocus" if str(one) == focused else ""}>{escape(_text(one))}</button>'
        for at, one in enumerate(question.choices)
    )
    return f'<form method="post">{name}{buttons}</form>'


def _outcome(question: Question) -> str:
    by = f" by {escape(question.by)}" if question.by else ""
    answer = f": <b>{escape(_text(question.answer))}</b>" if question.status == "answered" else ""
    return f"<p>This question was {escape(question.status)}{by}{answer}.</p>"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(jsonable(value), ensure_ascii=False, indent=2)
