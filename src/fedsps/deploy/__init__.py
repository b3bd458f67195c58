"""Real federations as processes: keys, SuperLink and SuperNodes, and runs on them.

What lives here starts, watches and stops Flower's programs on this machine, and says how to do it on several. It
imports `fedsps.runs` for files and nothing of the algorithms; it knows no terminal.

| file | concept |
| --- | --- |
| `deployment` | the folder of a federation, and the file that says what runs |
| `keys` | certificates and key pairs by which server and nodes know each other |
| `commands` | how SuperLink, gateway and nodes are started |
| `gateway` | the only door: nodes pass, nobody else |
| `stamp` | the time before each line of a log |
| `processes` | processes that outlive a command, and are found again |
| `programs` | Flower's programs, called and answered |
| `up` | bring a federation up on this machine, and take it down |
| `run` | an app on a federation that is up |
| `hosts` | the files and commands for a federation on several hosts |
"""
