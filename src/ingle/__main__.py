"""`python -m ingle`."""

from ingle.cli import main

if __name__ == "__main__":
    main()
