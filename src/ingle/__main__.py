"""`python -m ingle`."""

import os
import sys

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# With `-m`, Python puts the current folder first. Sessions may write there and replace the server's own modules.
if not sys.flags.safe_path and sys.path[:1] not in ([], [HERE]):
    del sys.path[0]

from ingle.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
