"""The command `fedsps`: one file a command, and what they share.

What lives here is the only place that knows the terminal. It imports everything else; nothing imports it. Library
errors name parameters; the command says them with its flags.

| file | concept |
| --- | --- |
| `main` | the command itself: its list of commands, and how it ends |
| `options` | options that several commands take |
| `terminal` | what is shown: results on standard output, the rest on standard error |
| all others | one command each, in an `app` of its own; the docstring of its function is its `--help` |
"""
