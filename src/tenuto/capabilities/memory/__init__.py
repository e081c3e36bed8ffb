"""Memory: what agents know, and how they find it again."""

from tenuto.capabilities.memory.embedding import Progress
from tenuto.capabilities.memory.forget import Receipt
from tenuto.capabilities.memory.knowledge import Loaded
from tenuto.capabilities.memory.memories import Memories
from tenuto.capabilities.memory.recall import Recalled, rank_texts
from tenuto.capabilities.memory.records import TRUST, Kind, Memory, MemoryFields, New, Source, Trust, memory_in, new
from tenuto.capabilities.memory.search.embedders import Embed, Embedder, embedder_of
from tenuto.capabilities.memory.search.profiles import BM25, MEANING
from tenuto.capabilities.memory.search.words import terms
from tenuto.capabilities.memory.tool import Shape

__all__ = [
    "BM25",
    "MEANING",
    "TRUST",
    "Embed",
    "Embedder",
    "Kind",
    "Loaded",
    "Memories",
    "Memory",
    "MemoryFields",
    "New",
    "Progress",
    "Recalled",
    "Receipt",
    "Shape",
    "Source",
    "Trust",
    "embedder_of",
    "memory_in",
    "new",
    "rank_texts",
    "terms",
]
