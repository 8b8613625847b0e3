"""Modules that know nothing of sessions: processes, files, logs, background tasks."""
