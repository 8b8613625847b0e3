"""Outputs: the timeline of a session, in memory and on disk, and the texts made from it."""
