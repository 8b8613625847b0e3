"""Resource limits of sessions: the limits, how they are applied, and the watchdog."""
