"""Real federations as processes: keys, SuperLink and SuperNodes, and runs on them.

What lives here starts, watches and stops Flower's programs on this machine, and says how to do it on several. It
imports `fedsps.runs` for files and nothing of the algorithms; it knows no terminal.
"""
