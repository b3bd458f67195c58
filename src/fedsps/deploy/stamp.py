"""The time before each line: what a process writes goes through here on the way into its log.

It is started as a script of its own, so it imports nothing of fedsps.
"""

import sys
from datetime import UTC, datetime


def main() -> None:
    """Copy lines until there are no more."""
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} ".encode() + line)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
