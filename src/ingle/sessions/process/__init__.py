"""The worker behind a session: how it starts, where it lives, what it is asked."""
