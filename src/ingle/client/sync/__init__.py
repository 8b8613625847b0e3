"""The synchronous client. tools/unasync.py generates its modules from those of `aio`, except `io`."""
