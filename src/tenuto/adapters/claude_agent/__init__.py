"""The Claude Agent SDK on tenuto: transcripts as threads, and hooks that checkpoint a session and inject the digest."""

from tenuto.adapters.claude_agent.hooks import TenutoHooks
from tenuto.adapters.claude_agent.store import TenutoSessionStore, thread_id

__all__ = ["TenutoHooks", "TenutoSessionStore", "thread_id"]
