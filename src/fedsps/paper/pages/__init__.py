"""One file a page of the reproduction: what to run, how to draw it, what is claimed. Each holds its `PAGE`."""
