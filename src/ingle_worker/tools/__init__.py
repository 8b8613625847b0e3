"""Tools inside of code: functions that the host carries out, called over the wire."""
