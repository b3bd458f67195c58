"""One small file a method: its parts, and the named algorithm made of them."""
