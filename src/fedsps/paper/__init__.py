"""The paper, re-run: one page a figure. A page says what to run, how to draw it, and what the paper claims about it."""
