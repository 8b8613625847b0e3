"""The asynchronous client. tools/unasync.py generates the modules of `sync` from these, except `io`."""
