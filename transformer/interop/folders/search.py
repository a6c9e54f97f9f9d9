"""Converts search options of Hugging Face's transformers and id_here.

There, lengths count the start of the decoder: `min_length` n is `min_length` n - 1 here, and so is
`max_length`. Processors of logits (`generation/logits_process.py`) get log-probabilities in beam search,
as here, and logits in greedy search and sampling, so that `repetition_penalty` means something else there.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from transformer.config.decoding import BeamConfig, DecodingConfig, GreedyConfig, MbrConfig, SampleConfig
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json

_STOP: dict[Any, Literal["exact", "present", "full"]] = {False: "present", True: "full", "never": "exact"}
_TOP_K = 50  # of transformers, if it is not given
_UNKNOWN: Json = {  # options without a counterpart here, and the value that has no effect
    "encoder_repetition_penalty": 1.0,
    "encoder_no_repeat_ngram_size": 0,
    "forced_decoder_ids": None,
    "sequence_bias": None,
    "exponential_decay_length_penalty": None,
    "force_words_ids": None,
    "constraints": None,
    "penalty_alpha": None,
    "guidance_scale": 1.0,
    "max_time": None,
    "stop_strings": None,
}
_OF_SAMPLING: Json = {
    "min_p": None,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "top_h": None,
}
_RULES = (
    *("repetition_penalty", "no_repeat_ngram_size", "min_length", "min_new_tokens"),
    *("suppress_tokens", "begin_suppress_tokens"),
)


# From Hugging Face


def searched_ids(described: Json, meant: Json) -> Json:
    """The ids of a search as `transformers` reads them: those of generation_config.json; of config.json where
    that has none. Outputs begin with bos_token_id if neither names the decoder's start.

    Args:
      described: config.json.
      meant: of generation_config.json, or without one config.json.
    """
    ids: Json = {"forced_bos_token_id": meant.get("forced_bos_token_id")}
    start = [
        (about, name) for name in ("decoder_start_token_id", "bos_token_id") for about in (meant, described)
    ]
    ids["decoder_start_token_id"] = next(
        (about[name] for about, name in start if about.get(name) is not None), None
    )
    ends = meant.get("eos_token_id")
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


def search_from_hub(meant: Json, vocab_size: int) -> DecodingConfig:
    """The search that these options describe.

    Args:
      meant: of generation_config.json.
      vocab_size: of the target. Ids beyond it have no effect there.

    Raises:
      UserError: a value is not one that the option can have.
    """
    early = meant.get("early_stopping") or False
    if type(early) not in (bool, str) or early not in _STOP:
        raise UserError(f'early_stopping is {early!r}, not true, false or "never"')
    beams = _whole(meant, "num_beams", 1, least=1)
    length = max(1, _whole(meant, "max_length", 512, least=1) - 1)
    length = _whole(meant, "max_new_tokens", length, least=1)
    least = max(0, _whole(meant, "min_length", 0) - 1)
    least = _whole(meant, "min_new_tokens", least)
    options: dict[str, Any] = {
        "length_penalty": _real(meant, "length_penalty"),
        "penalty": "power",
        "max_length": length,
        "min_length": min(least, length - 1),  # at the limit an output ends anyway
        "repetition_penalty": _real(meant, "repetition_penalty", above=0),
        "no_repeat_ngram": _whole(meant, "no_repeat_ngram_size", 0),
        "suppress": _ids((*_listed(meant, "suppress_tokens"), *_single_words(meant)), vocab_size),
        "suppress_first": _ids(_listed(meant, "begin_suppress_tokens"), vocab_size),
    }
    if meant.get("forced_bos_token_id") is not None:  # it comes first there
        options["suppress_first"] = ()
    if meant.get("do_sample") is True and beams == 1:
        top_k = 0 if meant.get("top_k", 0) is None else _whole(meant, "top_k", _TOP_K)
        options |= {"samples": 1, "top_k": top_k}
        options |= {name: _real(meant, name, above=0) for name in ("temperature", "top_p")}
        return SampleConfig(**options)
    # a beam of one ends with its first </s>, as greedy search does, if it compares present lengths
    return BeamConfig(beam_size=beams, stop=_STOP[early] if beams > 1 else "present", **options)


def _whole(meant: Json, name: str, default: int, least: int = 0) -> int:
    value = meant.get(name)
    if value is None:
        return default
    if type(value) is not int or value < least:
        raise UserError(f"{name} is {value!r}, not a whole number of at least {least}")
    return value


def _real(meant: Json, name: str, above: float = -math.inf) -> float:
    value = meant.get(name)
    if value is None:
        return 1.0
    if type(value) not in (int, float) or not value > above:
        raise UserError(f"{name} is {value!r}, not a number" + (f" above {above:g}" if above == 0 else ""))
    return float(value)


def not_imported(meant: Json, described: Json) -> list[str]:
    """A sentence for each option that changes outputs there, and is not carried by `search_from_hub`.

    Args:
      meant: of generation_config.json.
      described: config.json, by whose ids the model is read.
    """
    beams = meant.get("num_beams") or 1
    samples = meant.get("do_sample") is True
    groups = _in_use(meant, {"num_beam_groups": 1, "diversity_penalty": 0.0})
    unknown = _in_use(meant, _UNKNOWN | (_OF_SAMPLING if samples else {}))
    sentences = [f"{name} {json.dumps(meant[name])} has no counterpart here." for name in unknown]
    if groups:
        sentences.append(
            f"{' and '.join(f'{name} {json.dumps(meant[name])}' for name in groups)}: not carried; the "
            "nearest here are --groups and --diversity."
        )
    if samples and beams != 1:
        sentences.append(f"do_sample true with num_beams {beams}: beams are not sampled here.")
    for ids in _listed(meant, "bad_words_ids"):
        if len(ids) > 1:
            sentences.append(
                f"bad_words_ids {json.dumps(ids)}: here only single tokens are suppressed by id."
            )
    if meant.get("repetition_penalty") not in (None, 1.0) and beams == 1:
        sentences.append(
            f"repetition_penalty {meant['repetition_penalty']} with num_beams 1 is a factor on logits there, "
            "and on log-probabilities here."
        )
    if meant.get("forced_bos_token_id") is not None and _listed(meant, "begin_suppress_tokens"):
        sentences.append("begin_suppress_tokens with forced_bos_token_id are about the second token there.")
    rules = _in_use(meant, {name: 1.0 if name == "repetition_penalty" else 0 for name in _RULES})
    rules += ["bad_words_ids"] * any(True for _ in _single_words(meant))
    if meant.get("renormalize_logits") is True and beams > 1 and rules:
        sentences.append(
            f"renormalize_logits with {' and '.join(rules)}: what is left adds up to one there, and keeps "
            "its probabilities here."
        )
    ids = {**described, **searched_ids(described, meant)}
    for name in "eos_token_id", "pad_token_id", "forced_eos_token_id":
        id_here, id_there = ids.get(name.removeprefix("forced_")), meant.get(name)
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


def _in_use(meant: Json, neutral: Json) -> list[str]:
    return [name for name, value in neutral.items() if meant.get(name) not in (None, value, [])]


def _listed(meant: Json, name: str) -> list[Any]:
    values = meant.get(name) or []
    if not isinstance(values, list):
        raise UserError(f"{name} is {values!r}, not a list")
    return values


def _single_words(meant: Json) -> Iterable[int]:
    """The tokens that are forbidden alone, besides <pad>, which is never generated here, and </s>, which
    cannot be forbidden there."""
    never = meant.get("pad_token_id"), meant.get("eos_token_id")
    for ids in _listed(meant, "bad_words_ids"):
        if not isinstance(ids, list) or not ids:
            raise UserError(f"bad_words_ids has {ids!r}, not a list of ids")
        if len(ids) == 1 and ids[0] not in never:
            yield ids[0]


def _ids(values: Iterable[Any], vocab_size: int) -> tuple[int, ...]:
    several = tuple(values)
    if wrong := [index for index in several if type(index) is not int]:
        raise UserError(f"{wrong[0]!r} is among the ids of suppressed tokens")
    return tuple(dict.fromkeys(index for index in several if 0 <= index < vocab_size))


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
      numbers: the id there of each of id_here.
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
        options |= {"length_penalty": search.length_penalty}
        options |= {"early_stopping": next(value for value, kind in _STOP.items() if kind == stop)}
    if _draws(search):
        assert isinstance(search, SampleConfig)
        options |= {name: getattr(search, name) for name in ("temperature", "top_k", "top_p")}
    if search.min_length:
        options["min_length"] = search.min_length + 1
    if search.repetition_penalty != 1:
        options["repetition_penalty"] = float(search.repetition_penalty)
    if search.no_repeat_ngram:
        options["no_repeat_ngram_size"] = search.no_repeat_ngram
    for name, ids in ("suppress_tokens", search.suppress), ("begin_suppress_tokens", search.suppress_first):
        if known := [numbers[index] for index in ids if index in numbers]:
            options[name] = known
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
