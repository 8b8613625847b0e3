"""Random sequences of operations on sessions and their copies, against a plain model."""

import pytest

from support.server import Server
from support.session_model import run_sequences


@pytest.mark.both_levels
@pytest.mark.req("files.state", "files.changes", "diff.state", "trial.commit", "trial.discard")
def test_sessions_and_their_copies_hold_what_a_model_holds(server: Server) -> None:
    """`make soak` runs two hundred of them."""
    run_sequences(server, 5, 15)
