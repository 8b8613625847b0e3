"""The wire: what the host and the guest say to each other, as pure functions and tables.

Nothing in here opens, reads or writes anything. `frames` cuts bytes into frames and back, `messages` gives the
frames their meaning, `states` holds the table of a session's states. The host imports this room and no other
of the guest.

    WireError
    ├── FrameTooLarge    a length above the limit was announced
    ├── BadFrame         lengths that contradict each other
    └── BadMessage       a frame that is not one of the messages
"""

from ingle_worker.wire.frames import BadFrame, Frame, FrameReader, FrameTooLarge, WireError, encode_frame
from ingle_worker.wire.messages import BadMessage

__all__ = ["BadFrame", "BadMessage", "Frame", "FrameReader", "FrameTooLarge", "WireError", "encode_frame"]
