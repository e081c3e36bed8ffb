"""Context: what the model sees this turn, within a budget of tokens, and durable turns."""

from tenuto.capabilities.context.builder import NOTES, BuiltContext, ContextBuilder, LeftOut, Note, Part
from tenuto.capabilities.context.guard import Guard, Sign, SignKind
from tenuto.capabilities.context.sources import Sources
from tenuto.capabilities.context.tokens import estimate
from tenuto.capabilities.context.tools import Tool
from tenuto.capabilities.context.turn import Called, Turn, Turns

__all__ = [
    "NOTES",
    "BuiltContext",
    "Called",
    "ContextBuilder",
    "Guard",
    "LeftOut",
    "Note",
    "Part",
    "Sign",
    "SignKind",
    "Sources",
    "Tool",
    "Turn",
    "Turns",
    "estimate",
]
