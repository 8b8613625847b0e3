"""The client without `await`. But for `io`, its rooms are made from those of `aio` by tools/unasync.py."""
