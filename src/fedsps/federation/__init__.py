"""A real Flower federation on this machine, as processes, and the keys for one on several hosts."""
