"""The OpenAI Agents SDK on tenuto: sessions as threads, and runs of agents as durable runs."""

from tenuto.adapters.openai_agents.runner import TenutoRunner, run_state
from tenuto.adapters.openai_agents.session import TenutoSession

__all__ = ["TenutoRunner", "TenutoSession", "run_state"]
