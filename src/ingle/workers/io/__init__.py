"""Talking to a worker: its wire, its output, its standard input."""
