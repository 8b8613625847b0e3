"""Calls of tools by the code of one session."""
