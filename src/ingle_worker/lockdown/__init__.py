"""The lockdown: how a forked child confines itself before it runs user code. Standard library and ctypes only."""
