"""The client with `await`. The rooms of `sync` are made from those here by tools/unasync.py, but for `io`."""
