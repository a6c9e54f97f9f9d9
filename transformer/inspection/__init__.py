"""Looking into a model: what its words looked at, what its search threw away, as arrays, as pictures
and as a page. Nothing else in the package imports this."""

from transformer.inspection.attention import Attention, attention_of
from transformer.inspection.explorer import Explorer, explore
from transformer.inspection.tree import Candidate, SearchTree, search_tree

__all__ = [
    "Attention",
    "Candidate",
    "Explorer",
    "SearchTree",
    "attention_of",
    "explore",
    "search_tree",
]
