"""The corpus of spelled digits."""

import itertools

import pytest

from transformer import UserError
from transformer.data.built_in import spoken


def test_lines_are_spelled_digit_by_digit():
    assert spoken.spelled([4, 0, 7]) == ("4 0 7", "f o u r z e r o s e v e n")
    for source, target in itertools.islice(spoken.spelled_pairs("train"), 200):
        assert target.replace(" ", "") == "".join(spoken.NAMES[int(digit)] for digit in source.split())


def test_no_line_is_in_two_splits():
    found = [
        {source for source, _ in itertools.islice(spoken.spelled_pairs(split, lengths=[2, 3]), 3000)}
        for split in ("train", "validation", "test")
    ]
    for one, other in itertools.combinations(found, 2):
        assert not one & other
    with pytest.raises(UserError, match="no tests split of the corpus spelling"):
        next(spoken.spelled_pairs("tests"))
