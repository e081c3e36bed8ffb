"""A program in the place of `claude`: it speaks the SDK's protocol on stdin and stdout, with tools and a model that are made up.

    claude = program(folder)                                   # for ClaudeAgentOptions(cli_path=claude)

A prompt is a list of words. `compact` compacts the conversation; any other word is a tool call, and one that begins with
`bad` fails. The answer repeats, as JSON, what the hooks have added to the context since the session began.
"""

import json
import sys
from pathlib import Path
from typing import Any


def program(folder: Path) -> Path:
    """Write an executable file that runs this module."""
    made = folder / "claude"
    made.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} "$@"\n')
    made.chmod(0o755)
    return made


def _say(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


class Session:
    """One session of the program."""

    def __init__(self, session_id: str) -> None:
        self._hooks: dict[str, list[dict[str, Any]]] = {}
        self._requests = 0
        self._context: list[str] = []
        self._base = {"session_id": session_id, "transcript_path": "", "cwd": str(Path.cwd())}

    def hear(self, message: dict[str, Any]) -> None:
        if message["type"] == "control_request":
            self._hooks = message["request"].get("hooks") or {}
            response = {"subtype": "success", "request_id": message["request_id"], "response": {}}
            _say({"type": "control_response", "response": response})
            _say({"type": "system", "subtype": "init", "claude_code_version": "9.9.9", **self._base})
        elif message["type"] == "user":
            self._turn(message["message"]["content"])

    def _turn(self, prompt: str) -> None:
        self._fire("UserPromptSubmit", prompt=prompt)
        for at, word in enumerate(prompt.split()):
            given = {"tool_name": word, "tool_input": {"at": at}, "tool_use_id": f"toolu_{at}"}
            if word == "compact":
                self._fire("PreCompact", trigger="auto", custom_instructions=None)
            elif word.startswith("bad"):
                self._fire("PostToolUseFailure", **given, error="it failed")
            else:
                self._fire("PostToolUse", **given, tool_response="done")
        said = json.dumps(self._context)
        message = {"role": "assistant", "model": "made-up", "content": [{"type": "text", "text": said}]}
        _say({"type": "assistant", "message": message, **self._base})
        self._fire("Stop", stop_hook_active=False, last_assistant_message=f"I am done with {prompt}")
        numbers = {"duration_ms": 1, "duration_api_ms": 1, "num_turns": 1}
        _say({"type": "result", "subtype": "success", "is_error": False, "result": said, **numbers, **self._base})

    def _fire(self, event: str, **more: Any) -> None:
        for matcher in self._hooks.get(event, ()):
            for callback in matcher["hookCallbackIds"]:
                self._requests += 1
                given = {**self._base, "hook_event_name": event, **more}
                request = {"subtype": "hook_callback", "callback_id": callback, "input": given, "tool_use_id": None}
                _say({"type": "control_request", "request_id": f"r{self._requests}", "request": request})
                answer = json.loads(sys.stdin.readline())["response"]
                assert answer["request_id"] == f"r{self._requests}", answer
                output = answer["response"]
                more_context = output.get("hookSpecificOutput", {}).get("additionalContext")
                self._context += [text for text in (more_context, output.get("systemMessage")) if text]


if __name__ == "__main__":
    named = [one.partition("=")[2] for one in sys.argv if one.startswith(("--session-id=", "--resume="))]
    session = Session(named[-1] if named else "5c1f3d2b-0000-4000-8000-000000000001")
    for line in sys.stdin:
        session.hear(json.loads(line))
