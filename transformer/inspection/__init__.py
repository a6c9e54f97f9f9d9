"""Inspection of attention weights and beam searches, as arrays, pictures and a page. Within the package, only
`decode.py --explore` imports this."""

from transformer.inspection.attention import Attention, attention_of
from transformer.inspection.explorer import Explorer, explore
from transformer.inspection.sounds import explore_sounds
from transformer.inspection.tree import Candidate, SearchTree, search_tree

__all__ = [
    "Attention",
    "Candidate",
    "Explorer",
    "SearchTree",
    "attention_of",
    "explore",
    "explore_sounds",
    "search_tree",
]
