"""The errors a user can meet; each names the thing, the value and the remedy."""

from collections.abc import Iterable
from difflib import get_close_matches


class FedspsError(Exception):
    """Whatever fedsps refuses to do; the command line prints it without a traceback."""


class ConfigurationError(FedspsError, ValueError):
    """A setting that cannot work, alone or together with the others."""


class DataError(FedspsError, ValueError):
    """Data that is missing, damaged or of the wrong shape."""


class LowerBoundError(FedspsError, ValueError):
    """A loss fell below the `lower` bound that the Polyak rule was given."""


def unknown(kind: str, name: str, known: Iterable[str]) -> ConfigurationError:
    """An error for a name that is not in the list, with the nearest ones that are.

    >>> str(unknown("partition", "shard", ["iid", "shards"]))
    "unknown partition 'shard': did you mean shards?"
    """
    known = sorted(set(known) - {name})
    near = get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
    return ConfigurationError(f"unknown {kind} {name!r}: {hint}")
