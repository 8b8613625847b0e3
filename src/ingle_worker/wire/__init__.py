"""The wire: messages between the host and the guest, as pure functions and tables.

Nothing here does any I/O. `frames` splits bytes into frames, `messages` encodes and decodes messages, `states` holds
the table of a session's states. The host imports only this package of the guest.

    WireError
    ├── FrameTooLarge    a length above the limit
    ├── BadFrame         lengths that contradict each other
    └── BadMessage       a frame that is not one of the messages
"""

from ingle_worker.wire.frames import BadFrame, Frame, FrameReader, FrameTooLarge, WireError, encode_frame
from ingle_worker.wire.messages import BadMessage

__all__ = ["BadFrame", "BadMessage", "Frame", "FrameReader", "FrameTooLarge", "WireError", "encode_frame"]
