"""Opens a page in this user's browser, where there is a desktop to show it."""

import os
import subprocess
import sys

_DESKTOPS = ("DISPLAY", "WAYLAND_DISPLAY")


def open_page(url: str) -> bool:
    """Open `url` and return True, or return False where no browser with windows can be expected."""
    if sys.platform == "darwin":
        command = "open"
    elif any(os.environ.get(each) for each in _DESKTOPS):
        # `webbrowser` would fall back to a browser in the terminal, on top of the server's log.
        command = "xdg-open"
    else:
        return False
    try:
        done = subprocess.run(
            [command, url], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
