"""A run of several that fails: it is named, its traceback is kept in its folder, and the others go on.

What would refuse every run, such as data that are not there or a cohort larger than the clients, is raised at once.
"""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from fedsps.core.files import replace_file
from fedsps.errors import ConfigurationError, DataError, DiskFullError, Failure, FedspsError
from fedsps.methods.notation import parse
from fedsps.runs.checkpoint import FAILURE
from fedsps.runs.spec import Spec
from fedsps.runs.sweep import load_setup


def attempt(
    specs: Sequence[Spec], runs: str | Path, work: Callable[[list[int]], object], numbers: Sequence[int]
) -> dict[int, Failure]:
    """Do the work of some specs; where it fails, of each half of them, until those that fail are found.

    Args:
        specs: of which these are some.
        runs: the folder of run folders.
        work: runs specs by their numbers.
        numbers: of the specs to be run.

    Returns:
        Those that failed by their numbers; their tracebacks are in their folders.
    """
    try:
        work(list(numbers))
    except Exception as error:
        if is_common(specs[numbers[0]], error):
            raise
        if len(numbers) > 1:
            half = len(numbers) // 2
            parts = (attempt(specs, runs, work, part) for part in (numbers[:half], numbers[half:]))
            return {number: failure for part in parts for number, failure in part.items()}
        return {numbers[0]: keep(specs[numbers[0]], runs, error)}
    return {}


def keep(spec: Spec, runs: str | Path, error: Exception) -> Failure:
    """Write the traceback of a run that failed into its folder."""
    file = Path(runs) / spec.digest / FAILURE
    file.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(traceback.format_exception(error))
    replace_file(file, lambda partial: partial.write_text(text, encoding="utf-8"))
    return Failure(f"{spec.named.label()} seed {spec.plan.seed}", in_line(error), file)


def in_line(error: Exception) -> str:
    """An error in one line; those that are not ours with their kind.

    >>> in_line(ZeroDivisionError("division by zero"))
    'ZeroDivisionError: division by zero'
    """
    kind = "" if isinstance(error, FedspsError) else f"{type(error).__name__}: "
    return kind + " ".join(str(error).split())


def is_common(spec: Spec, error: Exception) -> bool:
    """Whether an error is no matter of this run alone: with another algorithm it is refused too, before it begins."""
    if isinstance(error, DiskFullError):
        return True
    if not isinstance(error, ConfigurationError | DataError):
        return False
    (plain,) = parse("fedsps")
    try:
        load_setup(replace(spec, algorithm=plain.name, parameters=plain.parameters))
    except FedspsError:
        return True
    return False
