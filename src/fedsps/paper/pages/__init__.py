"""One file a page: what it runs at each scale, how it draws it, and the claims that it settles.

Each file has a `PAGE`; `fedsps.paper.reproduce.PAGES` knows it by name. To add a page, write a file with a `PAGE` and
put its name there: the command, the document and the report follow.
"""
