"""Rendering of the types in `events` for readers. Pure functions without I/O.

A web page needs none of this: events and results carry mime bundles and colours unchanged. A terminal needs `mime`.
"""
