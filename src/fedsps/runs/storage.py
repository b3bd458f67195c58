"""Where the trials of a search are kept: Optuna's data base, opened by its URL. The only file that imports Optuna.

The URL may hold a password, which no message shows.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fedsps.errors import ConfigurationError

OPTIONS: dict[str, dict[str, Any]] = {  # of SQLAlchemy's engine, by the kind of the data base
    "sqlite": {"connect_args": {"timeout": 100}},  # seconds until another process has written
    "postgresql": {"connect_args": {"connect_timeout": 10}, "pool_pre_ping": True},  # connections may be cut while idle
}
DRIVERS = {"postgresql": "pip install 'fedsps[storage]'"}


def optuna_itself() -> Any:
    """Optuna itself, imported when a search begins: it is an extra, and says much unless it is told not to."""
    try:
        import optuna
    except ImportError as error:
        raise ConfigurationError("tuning needs optuna: pip install 'fedsps[tune]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


@contextmanager
def open_storage(url: str) -> Iterator[Any]:
    """The storage at this URL; its connections are closed at the end.

    Raises:
        ConfigurationError: with the data base's own reason, if it cannot be opened, or is gone later.
    """
    optuna = optuna_itself()
    kind, name = _kind_and_name(url)
    storage = _connected(url, kind, name)
    try:
        yield storage
    except optuna.exceptions.StorageInternalError as error:
        raise ConfigurationError(
            f"the storage {name} was lost: {_reason(error.__cause__ or error)}. What is finished is kept: the same "
            "command goes on"
        ) from error
    finally:
        storage.engine.dispose()


def _connected(url: str, kind: str, name: str) -> Any:
    """The storage, in five tries: processes that begin together may make its tables at the same time."""
    optuna = optuna_itself()
    for _ in range(5):
        try:
            return optuna.storages.RDBStorage(url, engine_kwargs=dict(OPTIONS.get(kind, {})))
        except ImportError as error:
            remedy = DRIVERS.get(kind, "install the one that SQLAlchemy names for it")
            raise ConfigurationError(
                f"the storage {name} needs a driver ({_reason(error.__cause__ or error)}): {remedy}"
            ) from error
        except Exception as error:  # of the data base or its driver
            problem = error
            if not any(words in str(error).lower() for words in ("already exists", "unique constraint")):
                break  # else another process makes the same tables at this moment
            time.sleep(1)
    raise ConfigurationError(f"the storage {name} cannot be opened: {_reason(problem)}") from problem


def _kind_and_name(url: str) -> tuple[str, str]:
    """The kind of the data base, and what messages call it: its URL without password and options.

    >>> _kind_and_name("postgresql://me:secret@host/base?sslmode=require")
    ('postgresql', 'postgresql://me:***@host/base')

    Raises:
        ConfigurationError: if it is no URL of a data base that SQLAlchemy knows, or its password has an @, behind
            which all would count as the host.
    """
    from sqlalchemy.engine import make_url

    problem = ConfigurationError(
        "the storage must be a URL, such as sqlite:///tune.db or postgresql://user:password@host/base, an @ in its "
        "password written as %40"
    )
    try:
        parsed = make_url(url)
        parsed.get_dialect()
    except Exception:
        raise problem from None  # there may be pieces of the password in its message
    if parsed.password is not None and url.count("@") > 1:
        raise problem
    return parsed.drivername, parsed.set(query={}).render_as_string(hide_password=True)


def _reason(error: BaseException) -> str:
    """The first line of a message, which is the data base's own."""
    return str(error).strip().partition("\n")[0]
