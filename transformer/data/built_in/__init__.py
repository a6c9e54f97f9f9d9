"""The built-in corpus: a synchronous grammar of English and German.

One derivation yields a sentence in both languages, so no download and no alignment are needed. The grammar
has the phenomena that make translation hard: gender, case and agreement, verb-second and verb-final order,
separable verbs, two kinds of negation, relative clauses, numbers. The German is a function of the English:
every word and construction has one translation.

A derivation samples a sentence type, the verbs of its clauses, and phrases for their arguments. Each sample
is an English and a German phrase with all inflections. Only the word order differs: a `Clause` has separate
parts, and `in_english` and `in_german` in `clauses.py` order them. The files build on each other: lexicon,
inflection, phrases, clauses, sentences, splits.
"""

from transformer.data.built_in.sentences import pairs, sentence_pair, split_of

VERSION = 1
"""Of what this generates: whoever changes that raises it (`corpora.BuiltIn`)."""
__all__ = ["VERSION", "pairs", "sentence_pair", "split_of"]
