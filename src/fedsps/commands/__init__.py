"""The larger commands of `fedsps`, one file each; `cli.py` gives them their names."""
