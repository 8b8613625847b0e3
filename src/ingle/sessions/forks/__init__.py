"""Forks of a session: copies that become sessions, and trials that may become the session itself."""
