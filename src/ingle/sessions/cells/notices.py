"""What is to be told of a session: to the next who runs a cell, and to whoever lists it."""


class Notices:
    def __init__(self) -> None:
        self._pending: list[str] = []
        self._lasting: list[str] = []
        self.of_start: list[str] = []
        """What went wrong when its worker began; as long as it lives."""

    def tell(self, notice: str) -> bool:
        """To the next who runs a cell, once. False when he is told already."""
        if notice in self._pending:
            return False
        self._pending.append(notice)
        return True

    def last(self, notice: str) -> None:
        """For the listing, as long as the session lives."""
        if notice not in self._lasting:
            self._lasting.append(notice)

    def replace(self, notices: list[str]) -> None:
        """What was to be told is not true any more; this is."""
        self._pending = list(notices)

    def take(self) -> list[str]:
        """What the next cell tells. It is told then."""
        pending, self._pending = self._pending, []
        return pending

    @property
    def all(self) -> list[str]:
        return [*dict.fromkeys([*self.of_start, *self._lasting, *self._pending])]
