"""Output of sessions: the timeline in memory and on disk, and pages read from it."""
