"""Displays of a cell as its result shows them: a bounded list, in which an update replaces its display."""

from ingle.events import Metadata, MimeBundle

MAX_DISPLAYS = 100
MAX_CHARACTERS = 16 * 1024 * 1024
"""Bounds of one result. Displays beyond either are in the timeline only."""


class Displays:
    def __init__(self) -> None:
        self.bundles: list[MimeBundle] = []
        self.metadata: list[Metadata] = []
        self.events: list[int] = []
        """Number of each display's event."""
        self.left_out = 0
        self._places: dict[str, int] = {}
        self._characters = 0

    def add(self, seq: int, data: MimeBundle, metadata: Metadata, display_id: str | None, update: bool) -> None:
        place = self._places.get(display_id) if display_id is not None and update else None
        more = weigh(data) - (weigh(self.bundles[place]) if place is not None else 0)
        if self._characters + more > MAX_CHARACTERS or (place is None and len(self.bundles) == MAX_DISPLAYS):
            self.left_out += 1
            return
        self._characters += more
        if place is not None:
            self.bundles[place], self.metadata[place], self.events[place] = data, metadata, seq
            return
        if display_id is not None:
            self._places[display_id] = len(self.bundles)
        self.bundles.append(data)
        self.metadata.append(metadata)
        self.events.append(seq)

    def notices(self, cell: int) -> list[str]:
        """Return a notice if some displays were left out."""
        if not self.left_out:
            return []
        return [
            f"{self.left_out} displays of cell {cell} are not in its result, which holds {MAX_DISPLAYS} of them "
            f"and {MAX_CHARACTERS} characters at most; they are among the session's events"
        ]


def weigh(data: MimeBundle) -> int:
    return sum(map(len, data.values()))
