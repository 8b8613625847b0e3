"""`python -m ingle`."""

import os
import sys

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# By `-m` the folder where it is started comes first. It may be one that sessions write, and what they put there would
# be loaded in the place of our own modules.
if not sys.flags.safe_path and sys.path[:1] not in ([], [HERE]):
    del sys.path[0]

from ingle.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
