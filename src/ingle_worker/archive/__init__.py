"""Tar streams of folders, written and read in bounded pieces. The file agent and clients of the host use them."""
