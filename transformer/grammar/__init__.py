"""The built-in corpus: a synchronous grammar of English and German.

One derivation yields a sentence in both languages, so pairs need no download and no alignment.
The grammar holds what makes translating hard: gender, case and agreement, verb-second and
verb-final order, separable verbs, the two negations, relative clauses, numbers. The German is a
function of the English: every word and construction has one translation.

A derivation draws a type of sentence, verbs for its clauses, and phrases for what the verbs need.
Each draw yields English and German together, down to inflected words. Only the order differs: a
`Clause` keeps its parts apart, and `in_english` and `in_german` in `clauses.py` arrange them. The
files build on each other: lexicon, inflection, phrases, clauses, sentences, splits.
"""

from transformer.grammar.sentences import sentence_pair
from transformer.grammar.splits import pairs, split_of

__all__ = ["pairs", "sentence_pair", "split_of"]
