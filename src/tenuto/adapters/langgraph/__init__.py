"""LangGraph on tenuto: `TenutoSaver` stores the checkpoints of graphs, `TenutoStore` their long-term memory.

graph = builder.compile(checkpointer=TenutoSaver("agent.db"))
"""

from tenuto.errors import MissingDriver

try:
    from tenuto.adapters.langgraph.saver import TenutoSaver
    from tenuto.adapters.langgraph.store import TenutoStore
    from tenuto.adapters.langgraph.tools import durable_tool
except ImportError as error:
    raise MissingDriver('LangGraph is not installed. Run: pip install "tenuto[langgraph]".') from error

__all__ = ["TenutoSaver", "TenutoStore", "durable_tool"]
