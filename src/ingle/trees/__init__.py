"""States of a session's folder: a tree lists all files, and a store holds their bytes, each once.

A file agent inside the session's confinement reads and writes the folder. The host decides, hashes and stores. Every
function that reads or writes blocks, and is called in a thread.
"""
