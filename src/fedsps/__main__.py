"""`python -m fedsps` is the command `fedsps`."""

from fedsps.cli.main import main

main()
