"""Options of a search as those of Hugging Face's transformers, and back."""

from dataclasses import replace

import pytest

from transformer.config.decoding import BeamConfig
from transformer.config.searches import MbrConfig, SampleConfig
from transformer.interop.folders.search import (
    OPTIONS,
    not_exported,
    not_imported,
    search_from_hub,
    search_to_hub,
)
from transformer.runtime.errors import UserError

SEARCHES = {
    "power": BeamConfig(penalty="power", length_penalty=0.7, stop="full", max_length=30),
    "rules": BeamConfig(
        penalty="power",
        beam_size=3,
        stop="present",
        max_length=30,
        min_length=3,
        repetition_penalty=1.5,
        no_repeat_ngram=2,
        suppress=(5, 7),
        suppress_first=(9,),
    ),
    "sampling": SampleConfig(penalty="power", samples=1, temperature=0.5, top_k=7, top_p=0.9, max_length=9),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_goes_out_and_comes_back(name):
    search, numbers = SEARCHES[name], {index: index + 1 for index in range(4, 59)}
    there = {"pad_token_id": 59, **search_to_hub(search, numbers, [], 59, 1024)}
    back = search_from_hub(there, 60)
    expected = replace(
        search,
        suppress=tuple(index + 1 for index in search.suppress),
        suppress_first=tuple(index + 1 for index in search.suppress_first),
    )
    if name == "sampling":  # where nothing is ranked
        expected = replace(expected, length_penalty=1.0)
    assert back == expected
    assert not_imported(there, {"pad_token_id": 59}) == []


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("num_beams", 0, "num_beams is 0, not a whole number of at least 1"),
        ("num_beams", 2.5, "num_beams is 2.5, not a whole number"),
        ("num_beams", "4", "num_beams is '4', not a whole number"),
        ("max_length", 0, "max_length is 0, not a whole number of at least 1"),
        ("max_new_tokens", True, "max_new_tokens is True, not a whole number"),
        ("min_length", -1, "min_length is -1, not a whole number of at least 0"),
        ("repetition_penalty", 0.0, "repetition_penalty is 0.0, not a number above 0"),
        ("length_penalty", [1], r"length_penalty is \[1\], not a number"),
        ("temperature", 0.0, "temperature is 0.0, not a number above 0"),
        ("top_p", "x", "top_p is 'x', not a number above 0"),
        ("top_k", -2, "top_k is -2, not a whole number"),
    ],
)
def test_values_that_an_option_cannot_have_are_refused(option, value, message):
    with pytest.raises(UserError, match=message):
        search_from_hub({"do_sample": True, option: value}, 60)
    assert search_from_hub({"do_sample": True, option: None}, 60) is not None  # as if it were not there


def test_diverse_beams_are_named():
    (said,) = not_imported({"num_beam_groups": 2, "diversity_penalty": 0.5}, {})
    assert said.startswith(
        "num_beam_groups 2 and diversity_penalty 0.5: not carried; the nearest here are --groups"
    )


def test_what_is_not_exported_is_named():
    search = BeamConfig(coverage_penalty=0.2, noise=0.1, beam_size=4, groups=2, extra_length=9)
    said = "\n".join(not_exported(search))
    for option in ("--extra-length 9", "--penalty wu", "--noise", "--coverage-penalty 0.2", "--groups 2"):
        assert option in said
    assert "one sample is drawn there" in not_exported(SampleConfig())[-1]
    assert "nothing there chooses among the 64 candidates" in not_exported(MbrConfig())[-1]
    one = not_exported(BeamConfig(beam_size=1, repetition_penalty=2.0))
    assert ["factor on log-probabilities" in one[0], "--stop exact of one beam" in one[1]] == [True, True]
    phrases = search_to_hub(search, {4: 2, 5: 3}, [(4, 5), (6,)], 9, 1024)["bad_words_ids"]
    assert phrases == [[9], [2, 3]]  # one with an id that is not exported cannot occur


def test_an_option_of_a_search_has_one_row():
    assert len({option.theirs for option in OPTIONS}) == len(OPTIONS)
    carried = [option.ours for option in OPTIONS if option.ours]
    assert len({*carried}) == len(carried)
