"""Two classes that articles teach, each a few lines on tenuto.

    python examples/agent_memory.py

`AgentMemory` has the four kinds of memory (working, episodic, semantic, procedural) and processes a turn in six steps.
`HybridMemory` keeps the exact state of a session next to insights that are found by meaning. Both survive a crash.
"""

from collections.abc import Callable
from typing import Any

from tenuto import Tenuto


class AgentMemory:
    """Working, episodic, semantic and procedural memory of an agent for one user."""

    def __init__(self, agent: Tenuto, user: str, thread: str) -> None:
        self.agent, self.user = agent, user
        self.episodic = agent.thread(thread, user=user)
        self.working = self.episodic.scratch  # gone with the process

    def process_turn(self, said: str, model: Callable[[list[dict[str, Any]]], str]) -> str:
        self.working["turn"] = self.working.get("turn", 0) + 1  # 1 perceive
        known = self.agent.memory.recall(said, k=3, user=self.user)  # 2 recall what is known
        how = [
            one for one in self.agent.playbooks.suggest(said, user=self.user) if one.case is None
        ]  # 3 and how it is done
        told = "; ".join([one.memory.text for one in known] + [f"playbook {one.playbook.name}" for one in how])
        prompt = [{"role": "system", "content": f"You know: {told}"}, *self.episodic.messages(last=10)]
        reply = model([*prompt, {"role": "user", "content": said}])  # 4 act
        before = self.episodic.count()
        self.episodic.append(
            {"role": "user", "content": said}, {"role": "assistant", "content": reply}
        )  # 5 store the turn
        self.agent.memory.absorb(self.episodic.id, after=before)  # 6 learn from it
        return reply


class HybridMemory:
    """The exact state of sessions by key, and insights by meaning."""

    def __init__(self, agent: Tenuto, user: str) -> None:
        self.agent, self.user = agent, user

    def save_session_state(self, session: str, state: dict[str, Any]) -> None:
        self.agent.state.set(f"session:{self.user}", session, state)

    def save_insight(self, text: str, about: str | None = None) -> str:
        return self.agent.memory.remember(text, user=self.user, about=about).id

    def recall_relevant(self, query: str, k: int = 5) -> list[str]:
        return [one.memory.text for one in self.agent.memory.recall(query, k, user=self.user)]

    def load_context(self, session: str, query: str) -> dict[str, Any]:
        state = self.agent.state.get(f"session:{self.user}", session, default={})
        return {"state": state, "insights": self.recall_relevant(query)}


def main(url: str) -> list[Any]:
    def model(messages: list[dict[str, Any]]) -> str:
        return f"({messages[0]['content']}) you said: {messages[-1]['content']}"

    shown: list[Any] = []
    with Tenuto("assistant", url) as agent:
        memory = AgentMemory(agent, "ann", "chat-1")
        agent.playbooks.save("book-flight", ["search", "book"], description="Book a flight for a user")
        memory.process_turn("I prefer aisle seats. My dog is called Rex.", model)
        shown.append(memory.process_turn("Which seat do I prefer on a flight?", model))
        hybrid = HybridMemory(agent, "ann")
        hybrid.save_session_state("trip", {"step": 3, "city": "Lisbon"})
        hybrid.save_insight("Ann travels with a dog, so hotels must allow pets", about="travel")
        shown.append(hybrid.load_context("trip", "which hotels allow a dog?"))
    for one in shown:
        print(one)
    return shown


if __name__ == "__main__":
    main("volatile:")
