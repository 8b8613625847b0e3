"""One session: its cell loop and the parts of it."""
