"""The lockdown: what a forked child does to itself before it runs anybody's code. Standard library and ctypes only."""
