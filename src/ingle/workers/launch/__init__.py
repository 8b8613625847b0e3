"""Starting workers: zygotes, and the launcher that asks them for forks."""
