"""Base class of all errors."""


class IngleError(Exception):
    code = "internal"
    status = 500
    retry_after: float | None = None
    """Seconds after which the same request may succeed, where known."""

    def __init__(self, message: str, problem: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.problem = message if problem is None else problem
        """The message without the next step, for APIs that name the next step in their own words."""
