"""Rendering: from the shapes of `events` to what a reader sees. Pure functions; nothing here reads or writes.

A web page needs nothing from here: events and results carry mime bundles and colour as they came. A terminal needs
`bundles` alone: text keeps its colour, a picture is one line.
"""
