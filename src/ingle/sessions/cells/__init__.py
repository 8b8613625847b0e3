"""Cells of a session: turns, deadlines, input, output, history."""
