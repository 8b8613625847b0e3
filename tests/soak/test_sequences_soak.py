"""The same sequences as in test_random_sequences, two hundred of them, each longer."""

import pytest

from support.seeds import new_seed
from support.server import Server
from support.session_model import run_sequences

pytestmark = pytest.mark.soak


@pytest.mark.timeout(1800)
def test_two_hundred_random_sequences(server: Server) -> None:
    run_sequences(server, 200, 20, new_seed())
