"""`python -m fedsps` is the command `fedsps`."""

from fedsps.cli import main

main()
