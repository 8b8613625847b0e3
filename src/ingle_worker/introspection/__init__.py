"""Help for people who write code: what a name refers to, and how it may go on. No user code runs for it."""
