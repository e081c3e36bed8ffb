"""What providers refuse in a conversation with tools, as small validators: each returns a complaint, or None."""

from typing import Any


def chat(messages: list[dict[str, Any]]) -> str | None:
    """OpenAI chat: the messages of the role "tool" that answer an assistant's calls follow it, one for each, and no other."""
    waiting: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                return f"a tool message answers {message['tool_call_id']}, which does not wait"
            waiting.remove(message["tool_call_id"])
        elif waiting:
            return f"{waiting} are not answered before {message}"
        else:
            waiting = {call["id"] for call in message.get("tool_calls", ())}
    return f"{waiting} are not answered" if waiting else None


def responses(items: list[dict[str, Any]]) -> str | None:
    """OpenAI responses, as strictly as compatible servers read it: nothing but calls and outputs between the two."""
    waiting: dict[str, str] = {}
    for item in items:
        kind = item["type"]
        if kind in ("function_call", "custom_tool_call"):
            if item["call_id"] in waiting:
                return f"{item['call_id']} is called twice"
            waiting[item["call_id"]] = f"{kind}_output"
        elif kind.endswith("_output"):
            if waiting.pop(item["call_id"], None) != kind:
                return f"{item} answers nothing"
        elif waiting and kind != "reasoning":
            return f"{waiting} are not answered before {item}"
    return f"{waiting} are not answered" if waiting else None


def anthropic(messages: list[dict[str, Any]]) -> str | None:
    """Anthropic: the results of an assistant's calls are the first blocks of the next turn.

    Messages of one role that follow each other are one turn, as the API combines them.
    """
    turns: list[tuple[str, list[dict[str, Any]]]] = []
    for message in messages:
        content = message["content"]
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        if not blocks:
            return "a message is empty"
        if turns and turns[-1][0] == message["role"]:
            turns[-1][1].extend(blocks)
        else:
            turns.append((message["role"], list(blocks)))
    waiting: set[str] = set()
    for role, blocks in turns:
        leading = True
        made = [at for at, block in enumerate(blocks) if block["type"] == "tool_use"]
        if made and made != list(range(made[0], len(blocks))):
            return "something follows a call in the same turn"
        for block in blocks:
            if block["type"] == "tool_result":
                if not leading or role != "user" or block["tool_use_id"] not in waiting:
                    return f"{block} answers nothing here"
                waiting.remove(block["tool_use_id"])
            else:
                leading = False
        if waiting:
            return f"{waiting} are not answered"
        waiting = {blocks[at]["id"] for at in made}
        if len(waiting) < len(made):
            return "an id is used twice in one turn"
    return f"{waiting} are not answered" if waiting else None


RULES = {"chat": chat, "responses": responses, "anthropic": anthropic}
