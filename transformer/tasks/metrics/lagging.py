"""How far a simultaneous translation is behind its source."""

from collections.abc import Sequence


def average_lagging(delays: Sequence[int], source_length: int) -> float:
    """The average lagging of a translation in tokens of the source (Ma et al. 2019, Eq. 8 and 9): how far it
    is behind one that is as fast as the source.

    Args:
      delays: how many tokens of the source were read before each token of the translation.
      source_length: the number of tokens of the source.

    Returns:
      The mean over the tokens up to the first that was written when the whole source had been read. An empty
      translation ends when all of it has been read, so it is behind by the length of the source.
    """
    if not delays:
        return float(source_length)
    until = next((t for t, delay in enumerate(delays, 1) if delay >= source_length), len(delays))
    pace = source_length / len(delays)
    return sum(delay - t * pace for t, delay in enumerate(delays[:until])) / until


def wait_k_delays(wait_k: int, source_length: int, target_length: int) -> list[int]:
    """The delays of wait-k (Ma et al. 2019, Eq. 5): token t is written after K + t - 1 of the source."""
    return [min(wait_k + t, source_length) for t in range(target_length)]
