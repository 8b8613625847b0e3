"""Watched folders: which files have changed since a mark."""
