"""Saving and loading a namespace."""
