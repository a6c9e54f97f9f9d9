"""Inspection of attention weights and beam searches, as arrays, pictures and a page. Within the package, only
`decode.py --explore` imports this."""

from transformer.explorer.attention import Attention, attention_of
from transformer.explorer.explorer import Explorer, explore, explore_pictures, explore_sounds
from transformer.explorer.tree import Candidate, SearchTree, search_tree

__all__ = [
    "Attention",
    "Candidate",
    "Explorer",
    "SearchTree",
    "attention_of",
    "explore",
    "explore_pictures",
    "explore_sounds",
    "search_tree",
]
