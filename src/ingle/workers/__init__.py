"""Workers: starting processes, talking to them, and knowing for sure how they ended."""
