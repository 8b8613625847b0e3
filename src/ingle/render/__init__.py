"""Rendering: from the shapes of `events` to what a reader sees. Pure functions; nothing here reads or writes.

A page needs no rendering here: events and results carry mime bundles and colour as they came, and the page draws them.
"""
