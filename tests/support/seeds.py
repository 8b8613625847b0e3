"""Seeds of tests that choose at random: new in each run, printed, and repeated with INGLE_TEST_SEED."""

import os
import random
import secrets


def new_seed() -> int:
    """Return the seed of this test, and print it: pytest shows it with a failure."""
    seed = int(os.environ.get("INGLE_TEST_SEED") or secrets.randbelow(1 << 32))
    print(f"INGLE_TEST_SEED={seed}")
    return seed


def new_chance() -> random.Random:
    """Return a source of random choices with the seed of this test."""
    return random.Random(new_seed())
