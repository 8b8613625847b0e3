"""One session: the loop that runs its cells, and what it needs for that."""
