"""Whole folders, for the host: listed, read and brought back by a file agent inside the session's confinement."""
