"""Who is missing in which round: a schedule, or a share of the clients drawn anew in each round.

A run draws its cohorts and batches as if nobody were missing; then those who are missing are taken out. So the others
do what they would have done, two algorithms miss the same clients, and what happened in a federation can be run again.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np

from fedsps.core.streams import Indices, draws, keys
from fedsps.errors import ConfigurationError

Absences = str | Mapping[int, Sequence[int]]
"""The clients that are missing by round 1, 2, ..., `{3: [0, 4]}`; the same as a text, see `written`; or a share."""

FORM = 'write "3:0/4,5..9:1" (round 3 without clients 0 and 4, rounds 5 to 9 without 1), or a share like "20%"'


def written(absences: Absences) -> str:
    """The absences as a text, the same for all ways to say the same.

    >>> written({3: [4, 0], 5: [1]}), written("5..9:1,3:4/0"), written("20.0%")
    ('3:0/4,5:1', '3:0/4,5..9:1', '20%')

    Raises:
        ConfigurationError: if they are not of this form.
    """
    if isinstance(absences, Mapping):
        absences = ",".join(f"{round}:{'/'.join(map(str, clients))}" for round, clients in absences.items())
    if not isinstance(absences, str):
        raise ConfigurationError(f"absences must be a text or a dictionary; got {absences!r}: {FORM}")
    share = share_of(absences)
    if share is not None:
        return f"{100 * share:g}%"
    return ",".join(
        f"{first}{'' if first == last else f'..{last}'}:{'/'.join(map(str, clients))}"
        for first, last, clients in sorted(schedule(absences))
    )


@cache
def share_of(text: str) -> float | None:
    """The share of the clients that is missing in a round; None where the text is a schedule."""
    found = re.fullmatch(r"(\d{1,2}(?:\.\d{1,9})?)%", text, re.ASCII)
    if found is None or float(found[1]) == 0:
        return None
    return float(found[1]) / 100


@cache
def schedule(text: str) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
    """First round, last round and missing clients of each part of a schedule.

    >>> schedule("3:0/4,5..9:1")
    ((3, 3, (0, 4)), (5, 9, (1,)))
    """
    parts = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d{1,9})(?:\.\.(\d{1,9}))?:(\d{1,9}(?:/\d{1,9})*)", part.strip(), re.ASCII)
        first, last = (0, 0) if found is None else (int(found[1]), int(found[2] or found[1]))
        if found is None or not 1 <= first <= last:
            raise ConfigurationError(f"absences has no meaning for {part.strip()!r}: {FORM}; rounds count from 1")
        parts.append((first, last, tuple(sorted({int(client) for client in found[3].split("/")}))))
    return tuple(parts)


def missing(text: str) -> set[int]:
    """All clients that a schedule names."""
    return set() if share_of(text) else {client for *_, clients in schedule(text) for client in clients}


def present(text: str, cohort: Indices, seed: int, round: int) -> Indices:
    """Those of a cohort that are not missing in round 0, 1, ..., ascending. A share leaves one client at least.

    >>> present("2:0/4", np.array([0, 2, 4]), seed=0, round=1)
    array([2])

    Raises:
        ConfigurationError: a schedule leaves nobody.
    """
    share = share_of(text)
    if share is None:
        gone = [clients for first, last, clients in schedule(text) if first <= round + 1 <= last]
        left = np.setdiff1d(cohort, np.concatenate([[], *gone]).astype(np.int64))
        if not len(left):
            raise ConfigurationError(f"absences leaves nobody of the cohort {cohort.tolist()} in round {round + 1}")
        return left
    draw = draws(keys(seed, "absence", round, cohort), 1)[:, 0]
    stays = draw >= np.uint64(share * 2**64)
    stays[np.argmax(draw)] = True
    return cohort[stays]
