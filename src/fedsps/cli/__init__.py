"""The command `fedsps`: one file a command, and what they share.

What lives here is the only place that knows the terminal. It imports everything else; nothing imports it. Library
errors name parameters; the command says them with its flags.
"""
