"""Inspection of attention weights and beam searches, as arrays, pictures and a page. Within the package, only
`decode.py --explore` imports this."""

from transformer.translator.explorer.attention import Attention, attention_of
from transformer.translator.explorer.explorer import Explorer, explore
from transformer.translator.explorer.seen import explore_pictures
from transformer.translator.explorer.sounds import explore_sounds
from transformer.translator.explorer.tree import Candidate, SearchTree, search_tree

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
