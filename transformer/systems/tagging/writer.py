"""The labels of the words in each line."""

from typing import ClassVar

from transformer.cli.writer import Writer


class Tags(Writer):
    """Words with their labels, such as old/JJ; or JSON objects with words, labels and probabilities."""

    does = "labels words and does not translate"
    instead: ClassVar = dict.fromkeys(("jsonl", "tsv"), "a line is a sentence, its words separated by spaces")
    formats: ClassVar = ("text", "json")


WRITER = Tags
