"""Converts search options of Hugging Face's transformers to those here, and back.

There, lengths count the start of the decoder: `min_length` n is `min_length` n - 1 here, and so is
`max_length`. Processors of logits (`generation/logits_process.py`) get log-probabilities in beam search,
as here, and logits in greedy search and sampling, so that `repetition_penalty` means something else there.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from transformer.config.decoding import BeamConfig, DecodingConfig
from transformer.config.searches import GreedyConfig, MbrConfig, SampleConfig
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json

_STOP: dict[Any, Literal["exact", "present", "full"]] = {False: "present", True: "full", "never": "exact"}
_TOP_K = 50  # of transformers, if it is not given
Kind = Literal["real", "positive", "whole", "length", "ids"]


class Option(NamedTuple):
    """An option of a search, there and here. Those that depend on each other (beams, lengths, the end of a
    search) are no part of `OPTIONS`."""

    theirs: str
    ours: str = ""
    """Empty: there is no counterpart here."""
    neutral: Any = None
    """The value there that has no effect, besides null and an empty list."""
    kind: Kind = "real"
    """length: of an output, which counts the start of the decoder there."""
    when: Literal["always", "beams", "sampling"] = "always"
    """With which searches it counts. An export writes one of beams and of sampling whatever its value is."""


OPTIONS = (
    Option("length_penalty", "length_penalty", 1.0, when="beams"),
    Option("temperature", "temperature", 1.0, "positive", "sampling"),
    Option("top_p", "top_p", 1.0, "positive", "sampling"),
    Option("top_k", "top_k", 0, "whole", "sampling"),
    Option("repetition_penalty", "repetition_penalty", 1.0, "positive"),
    Option("no_repeat_ngram_size", "no_repeat_ngram", 0, "whole"),
    Option("min_length", "min_length", 0, "length"),
    Option("suppress_tokens", "suppress", kind="ids"),
    Option("begin_suppress_tokens", "suppress_first", kind="ids"),
    Option("encoder_repetition_penalty", neutral=1.0),
    Option("encoder_no_repeat_ngram_size", neutral=0),
    *map(Option, ("forced_decoder_ids", "sequence_bias", "exponential_decay_length_penalty")),
    *map(Option, ("force_words_ids", "constraints", "penalty_alpha")),
    Option("guidance_scale", neutral=1.0),
    *map(Option, ("max_time", "stop_strings")),
    Option("min_p", when="sampling"),
    Option("typical_p", neutral=1.0, when="sampling"),
    Option("epsilon_cutoff", neutral=0.0, when="sampling"),
    Option("eta_cutoff", neutral=0.0, when="sampling"),
    Option("top_h", when="sampling"),
)


# From Hugging Face


def searched_ids(described: Json, hub: Json) -> Json:
    """The ids of a search as `transformers` reads them: those of generation_config.json; of config.json where
    that has none. Outputs begin with bos_token_id if neither names the decoder's start.

    Args:
      described: config.json.
      hub: of generation_config.json, or without one config.json.
    """
    ids: Json = {"forced_bos_token_id": hub.get("forced_bos_token_id")}
    start = [
        (config, name) for name in ("decoder_start_token_id", "bos_token_id") for config in (hub, described)
    ]
    ids["decoder_start_token_id"] = next(
        (config[name] for config, name in start if config.get(name) is not None), None
    )
    ends = hub.get("eos_token_id")
    ends = ends[0] if isinstance(ends, list) and len(ends) == 1 else ends
    ids["eos_token_id"] = ends if type(ends) is int else described.get("eos_token_id")
    return ids


def forced_start(described: Json, size: int) -> tuple[int, ...]:
    """The token that outputs are forced to begin with, if there is one.

    Args:
      described: config.json with `searched_ids`.
      size: of the target's vocabulary.

    Raises:
      UserError: it is no id of a word, or the end.
    """
    forced = described.get("forced_bos_token_id")
    if forced is None:
        return ()
    if type(forced) is not int or not 0 <= forced < size:
        raise UserError(f"forced_bos_token_id is {forced!r}, not an id below {size}")
    if forced == described["eos_token_id"]:
        raise UserError(
            f"forced_bos_token_id {forced} is also eos_token_id: every output would be empty, as it is with "
            "transformers. Take it out of generation_config.json, or of config.json if there is none"
        )
    return (forced,)


def search_from_hub(hub: Json, vocab_size: int) -> DecodingConfig:
    """The search that these options describe.

    Args:
      hub: of generation_config.json.
      vocab_size: of the target. Ids beyond it have no effect there.

    Raises:
      UserError: a value is not one that the option can have.
    """
    early = hub.get("early_stopping") or False
    if type(early) not in (bool, str) or early not in _STOP:
        raise UserError(f'early_stopping is {early!r}, not true, false or "never"')
    beams = _whole(hub, "num_beams", 1, least=1)
    length = max(1, _whole(hub, "max_length", 512, least=1) - 1)
    length = _whole(hub, "max_new_tokens", length, least=1)
    draws = hub.get("do_sample") is True and beams == 1
    imported = (option for option in OPTIONS if option.ours and (draws or option.when != "sampling"))
    options = {option.ours: _value(option, hub, vocab_size) for option in imported}
    options |= {"penalty": "power", "max_length": length}
    least = _whole(hub, "min_new_tokens", options["min_length"])
    options["min_length"] = min(least, length - 1)  # at the limit an output ends anyway
    options["suppress"] = _ids((*options["suppress"], *_single_words(hub)), vocab_size)
    if hub.get("forced_bos_token_id") is not None:  # it comes first there
        options["suppress_first"] = ()
    if draws:
        return SampleConfig(samples=1, **options)
    # a beam of one ends with its first </s>, as greedy search does, if it compares present lengths
    return BeamConfig(beam_size=beams, stop=_STOP[early] if beams > 1 else "present", **options)


def _value(option: Option, hub: Json, vocab_size: int) -> Any:
    """The value here of an option that has a counterpart."""
    match option.kind:
        case "ids":
            return _ids(_listed(hub, option.theirs), vocab_size)
        case "length":
            return max(0, _whole(hub, option.theirs, option.neutral) - 1)
        case "whole":
            absent = _TOP_K if option.ours == "top_k" and "top_k" not in hub else option.neutral
            return _whole(hub, option.theirs, absent)
    return _real(hub, option.theirs, above=0 if option.kind == "positive" else -math.inf)


def _whole(hub: Json, name: str, default: int, least: int = 0) -> int:
    value = hub.get(name)
    if value is None:
        return default
    if type(value) is not int or value < least:
        raise UserError(f"{name} is {value!r}, not a whole number of at least {least}")
    return value


def _real(hub: Json, name: str, above: float = -math.inf) -> float:
    value = hub.get(name)
    if value is None:
        return 1.0
    if type(value) not in (int, float) or not value > above:
        raise UserError(f"{name} is {value!r}, not a number" + (f" above {above:g}" if above == 0 else ""))
    return float(value)


def not_imported(hub: Json, described: Json) -> list[str]:
    """A sentence for each option that changes outputs there, and is not carried by `search_from_hub`.

    Args:
      hub: of generation_config.json.
      described: config.json, by whose ids the model is read.
    """
    beams = hub.get("num_beams") or 1
    samples = hub.get("do_sample") is True
    groups = _in_use(hub, {"num_beam_groups": 1, "diversity_penalty": 0.0})
    of_search = ("always", "sampling") if samples else ("always",)
    unknown = _in_use(hub, {x.theirs: x.neutral for x in OPTIONS if not x.ours and x.when in of_search})
    sentences = [f"{name} {json.dumps(hub[name])} has no counterpart here." for name in unknown]
    if groups:
        sentences.append(
            f"{' and '.join(f'{name} {json.dumps(hub[name])}' for name in groups)}: not carried; the "
            "nearest here are --groups and --diversity."
        )
    if samples and beams != 1:
        sentences.append(f"do_sample true with num_beams {beams}: beams are not sampled here.")
    for ids in _listed(hub, "bad_words_ids"):
        if len(ids) > 1:
            sentences.append(
                f"bad_words_ids {json.dumps(ids)}: here only single tokens are suppressed by id."
            )
    if hub.get("repetition_penalty") not in (None, 1.0) and beams == 1:
        sentences.append(
            f"repetition_penalty {hub['repetition_penalty']} with num_beams 1 is a factor on logits there, "
            "and on log-probabilities here."
        )
    if hub.get("forced_bos_token_id") is not None and _listed(hub, "begin_suppress_tokens"):
        sentences.append("begin_suppress_tokens with forced_bos_token_id are about the second token there.")
    rules = _in_use(hub, {x.theirs: x.neutral for x in OPTIONS if x.ours and x.when == "always"})
    rules += _in_use(hub, {"min_new_tokens": 0})
    rules += ["bad_words_ids"] * any(True for _ in _single_words(hub))
    if hub.get("renormalize_logits") is True and beams > 1 and rules:
        sentences.append(
            f"renormalize_logits with {' and '.join(rules)}: what is left adds up to one there, and keeps "
            "its probabilities here."
        )
    ids = {**described, **searched_ids(described, hub)}
    for name in "eos_token_id", "pad_token_id", "forced_eos_token_id":
        id_here, id_there = ids.get(name.removeprefix("forced_")), hub.get(name)
        if id_there not in (None, id_here, [id_here]):
            sentences.append(f"{name} is {json.dumps(id_there)} there, and {json.dumps(id_here)} here.")
    for name in "eos_token_id", "decoder_start_token_id":
        id_here, id_there = ids[name], described.get(name)
        if id_there not in (None, id_here):
            sentences.append(
                f"{name} {json.dumps(id_there)} of config.json, with which training there begins or ends; "
                f"both training and search have {json.dumps(id_here)} here."
            )
    return sentences


def _in_use(hub: Json, neutral: Json) -> list[str]:
    return [name for name, value in neutral.items() if hub.get(name) not in (None, value, [])]


def _listed(hub: Json, name: str) -> list[Any]:
    values = hub.get(name) or []
    if not isinstance(values, list):
        raise UserError(f"{name} is {values!r}, not a list")
    return values


def _single_words(hub: Json) -> Iterable[int]:
    """The tokens that are forbidden alone, besides <pad>, which is never generated here, and </s>, which
    cannot be forbidden there."""
    never = hub.get("pad_token_id"), hub.get("eos_token_id")
    for ids in _listed(hub, "bad_words_ids"):
        if not isinstance(ids, list) or not ids:
            raise UserError(f"bad_words_ids has {ids!r}, not a list of ids")
        if len(ids) == 1 and ids[0] not in never:
            yield ids[0]


def _ids(values: Iterable[Any], vocab_size: int) -> tuple[int, ...]:
    ids = tuple(values)
    if wrong := [index for index in ids if type(index) is not int]:
        raise UserError(f"{wrong[0]!r} is among the ids of suppressed tokens")
    return tuple(dict.fromkeys(index for index in ids if 0 <= index < vocab_size))


# To Hugging Face


def search_to_hub(
    search: DecodingConfig,
    numbers: Mapping[int, int],
    phrases: Sequence[Sequence[int]],
    pad: int,
    positions: int,
) -> Json:
    """The options of generation_config.json for a search.

    Args:
      search: the options here.
      numbers: the id there of each id here.
      phrases: the sequences of our ids that are forbidden.
      pad: the id of <pad> there.
      positions: maximum length there.
    """
    longest = search.max_length or search.buckets[-1] + search.extra_length
    forbidden = [[numbers[index] for index in phrase] for phrase in phrases if numbers.keys() >= set(phrase)]
    options: Json = {
        "do_sample": _draws(search),
        "num_beams": _beams(search),
        "max_length": min(longest + 1, positions),
        "bad_words_ids": [[pad], *forbidden],
    }
    if options["num_beams"] > 1:
        stop = search.stop if isinstance(search, BeamConfig) else "exact"
        options |= {"early_stopping": next(value for value, rule in _STOP.items() if rule == stop)}
    of_search = {"beams": options["num_beams"] > 1, "sampling": options["do_sample"], "always": True}
    for option in OPTIONS:
        if option.ours and of_search[option.when]:
            value = getattr(search, option.ours)
            if option.kind == "ids":
                value = [numbers[index] for index in value if index in numbers]
            if option.when != "always" or value not in (option.neutral, []):
                options[option.theirs] = value + 1 if option.kind == "length" else value
    return options


def not_exported(search: DecodingConfig) -> list[str]:
    """A sentence for each option that changes outputs here, and is not carried by `search_to_hub`."""
    sentences = []
    if search.extra_length != DecodingConfig.extra_length:
        sentences.append(
            f"--extra-length {search.extra_length}: there is no limit relative to the source there."
        )
    beams = _beams(search)
    if search.penalty == "wu" and search.length_penalty and beams > 1:
        sentences.append(
            f"--penalty wu becomes |Y|^{search.length_penalty:g}, the only form there: short outputs compare "
            "otherwise."
        )
    for option in search.noisy:
        sentences.append(f"--{option.replace('_', '-')}: there is no noise there.")
    if search.repetition_penalty != 1 and beams == 1:
        sentences.append(
            f"--repetition-penalty {search.repetition_penalty:g} of one beam is a factor on "
            "log-probabilities here, and on logits there."
        )
    match search:
        case MbrConfig():
            sentences.append(f"--method mbr: nothing there chooses among the {search.samples} candidates.")
        case SampleConfig():
            sentences.append(
                f"--samples {search.samples}, --seed: one sample is drawn there, with other random numbers."
            )
        case BeamConfig():
            if search.coverage_penalty:
                sentences.append(f"--coverage-penalty {search.coverage_penalty:g} does not exist there.")
            if search.groups > 1:
                sentences.append(f"--groups {search.groups}: there all beams are one group.")
            if beams == 1 and search.stop == "exact" and search.length_penalty > 0:
                sentences.append("--stop exact of one beam: greedy search ends with its first </s> there.")
    return sentences


def _draws(search: DecodingConfig) -> bool:
    return isinstance(search, SampleConfig) and getattr(search, "candidates", "sample") == "sample"


def _beams(search: DecodingConfig) -> int:
    return 1 if isinstance(search, GreedyConfig) or _draws(search) else search.num_hypotheses
