"""Hints that explain the exception of a cell by what the host knows."""
