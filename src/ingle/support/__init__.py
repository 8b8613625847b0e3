"""Helpers that do not know sessions: processes, files, logs, background tasks."""
