"""Figures of matplotlib: drawn without a screen, shown once, and again when they have changed.

They are taken at the end of the cell, however it ended, at `show()`, and before the cell waits for input. What
pyplot holds at the end of a cell is closed, so that the next one starts clean; a figure that the user keeps is watched,
and shown again when it is drawn differently. Whether it is is decided by the picture itself; `stale` only says where to
look. A figure made by a thread of an earlier cell is shown as background, never as a part of the running cell.

matplotlib is never imported here. A figure that cannot be drawn is a notice.
"""

import _signal  # type: ignore[import-not-found]
import io
import os
from collections.abc import Callable
from time import monotonic
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from ingle_worker.display import images
from ingle_worker.display.import_hooks import Watch, loaded
from ingle_worker.display.mime import Bundle
from ingle_worker.session.output_streams import Channel

PYPLOT = "matplotlib._pylab_helpers"
"""Loaded with pyplot: where it keeps its figures."""
PNG = "image/png"
CONTENTS = ("axes", "lines", "patches", "texts", "images", "artists", "legends", "subfigs")
"""Where the parts of a figure are; one that has none is not shown."""


HURRY = 0.5
"""Seconds for the figures of an interrupted cell: half of what there is by default between a timeout and the end."""


class TooSlow(BaseException):
    """Time is over; not to be caught by what is being drawn."""


class Alarm:
    """Raises TooSlow in the main thread after so many seconds. The user's own alarm is put aside meanwhile."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        self._began = monotonic()
        self._handler = _signal.signal(_signal.SIGALRM, self._ring)
        self._left, self._every = _signal.setitimer(_signal.ITIMER_REAL, self._seconds)

    @staticmethod
    def _ring(number: int, frame: Any) -> None:
        raise TooSlow

    def __exit__(self, *exc: object) -> None:
        _signal.setitimer(_signal.ITIMER_REAL, 0)
        if self._handler is not None:
            _signal.signal(_signal.SIGALRM, self._handler)
        if self._left:
            left = max(self._left - (monotonic() - self._began), 0.001)
            _signal.setitimer(_signal.ITIMER_REAL, left, self._every)


def choose_backends() -> None:
    """Before a library is imported: none looks for a screen or a browser. What the operator has set is left alone."""
    os.environ.setdefault("MPLBACKEND", "Agg")
    os.environ.setdefault("PLOTLY_RENDERER", "plotly_mimetype")


class Figures:
    def __init__(self, channel: Channel, publish: Callable[[Bundle, bool], None], say: Callable[[str], None]) -> None:
        self._channel = channel
        self._publish = publish
        self._say = say
        self._seen: WeakKeyDictionary[Any, tuple[str, int]] = WeakKeyDictionary()
        """The picture that was last shown of a figure, by its hash, and in which cell."""
        self.any = False
        """Whether there ever was one: asked at the end of every cell, where the dictionary may not work any more."""
        self._strangers: WeakSet[Any] = WeakSet()
        """Figures that the background has made."""

    def watch(self, imports: Watch) -> None:
        imports.call_after("matplotlib.backend_bases", self._adopt_managers)
        imports.call_after("matplotlib.figure", self._adopt_figure)
        imports.call_after("matplotlib.pyplot", self._adopt_pyplot)

    # --- what is set in matplotlib ---

    def _adopt_managers(self, module: Any) -> None:
        """Of a backend without a screen: `show` shows here, and who made a figure is noted."""
        base = module.FigureManagerBase
        make = base.__init__

        def __init__(manager: Any, *args: Any, **options: Any) -> None:
            make(manager, *args, **options)
            if self._channel.is_background():
                self._strangers.add(manager.canvas.figure)

        def show(manager: Any) -> None:
            self.show(manager.canvas.figure)

        __init__.__doc__, show.__doc__ = make.__doc__, base.show.__doc__
        base.__init__, base.show = __init__, show

    def _adopt_figure(self, module: Any) -> None:
        """A figure that was closed here, not by the user, can still be asked to show itself."""
        original = module.Figure.show

        def show(figure: Any, warn: bool = True) -> None:
            if figure.canvas.manager is None and figure in self._seen:
                self.show(figure)
            else:
                original(figure, warn)

        show.__doc__ = original.__doc__
        module.Figure.show = show

    def _adopt_pyplot(self, module: Any) -> None:
        original = module.show

        def show(*args: Any, **options: Any) -> Any:
            if self._managers(screen=True):
                return original(*args, **options)
            self._take(close=True, background=self._channel.is_background())
            return None

        show.__doc__, show.__name__, show.__module__ = original.__doc__, "show", original.__module__
        module.show = show

    # --- when figures are taken ---

    def cell_begins(self) -> None:
        """What is in pyplot now was made between the cells, and is not this one's."""
        if loaded(PYPLOT, "Gcf") is not None:
            self._take(close=True, background=True, all=True)

    def cell_ends(self, *, interrupted: bool = False) -> None:
        """However it ended. An interrupt that comes now stops the drawing, and goes on to the caller.

        Was the cell itself interrupted, little time is left: past its timeout a cell is soon killed, and the session's
        variables with it.
        """
        if not self.any and loaded(PYPLOT, "Gcf") is None:
            return
        if not interrupted:
            self._take(close=True, background=False)
            return
        try:
            with Alarm(HURRY):
                self._take(close=True, background=False)
        except TooSlow:
            self._say(f"figures of this interrupted cell took longer than {HURRY:g} s to draw, and are not shown")

    def input_waits(self) -> None:
        if loaded(PYPLOT, "Gcf") is not None and not self._channel.is_background():
            self._take(close=False, background=False)

    def is_figure(self, cls: type) -> bool:
        kind = loaded("matplotlib.figure", "Figure")
        return isinstance(kind, type) and any(base is kind for base in type.__dict__["__mro__"].__get__(cls))

    def show(self, figure: Any) -> None:
        """Somebody asks for it: it is shown, unless this very picture was shown in this cell already."""
        self._show(figure, self._channel.is_background(), asked=True)

    def draw(self, figure: Any) -> Bundle | None:
        """The bundle of a figure, for who shows it himself; from then on this picture counts as shown."""
        if not _has_contents(figure):
            return None
        bundle = self._draw(figure)
        if bundle is not None:
            self._remember(figure, _hash(bundle))
        return bundle

    # --- taking ---

    @staticmethod
    def _managers(*, screen: bool = False) -> list[Any]:
        """What pyplot holds: of a backend that draws into memory, or of one that has a screen of its own."""
        figs = getattr(loaded(PYPLOT, "Gcf"), "figs", None)
        base = loaded("matplotlib.backend_bases", "FigureManagerBase")
        if not isinstance(figs, dict) or base is None:
            return []
        return [each for each in figs.values() if (type(each).show is not base.show) == screen]

    def _take(self, *, close: bool, background: bool, all: bool = False) -> None:
        try:
            self._take_some(close, background, all)
        except Exception as error:  # the border to the library: another version of it, or a module in its place
            self._say(f"figures could not be looked for: {type(error).__name__}: {error}"[:500])

    def _take_some(self, close: bool, background: bool, all: bool) -> None:
        managers = [each for each in self._managers() if all or (each.canvas.figure in self._strangers) == background]
        if all:
            # One that has nothing in it yet is just being made, by a thread: closed now, it would be lost.
            managers = [each for each in managers if _has_contents(each.canvas.figure)]
        figures = [each.canvas.figure for each in managers]
        figures += [
            each
            for each in list(self._seen)
            if each.stale and each not in figures and (each in self._strangers) == background
        ]
        try:
            for figure in figures:
                if figure.stale or figure not in self._seen:
                    self._show(figure, background, asked=False)
        finally:
            if close:
                destroy = loaded(PYPLOT, "Gcf").destroy
                for manager in managers:
                    destroy(manager)

    def _show(self, figure: Any, background: bool, *, asked: bool) -> None:
        if not _has_contents(figure):
            return
        bundle = self._draw(figure)
        if bundle is None:
            return
        before = self._seen.get(figure)
        picture = _hash(bundle)
        self._remember(figure, picture)
        if before is None or before[0] != picture or (asked and before[1] != self._channel.cell):
            self._publish(bundle, background)

    def _remember(self, figure: Any, picture: str) -> None:
        self.any = True
        self._seen[figure] = (picture, self._channel.cell)

    def _draw(self, figure: Any) -> Bundle | None:
        try:
            bundle = Bundle({"text/plain": repr(figure)})
            bundle.add_fitted(PNG, _fit(figure))
            figure.stale = False
            return bundle
        except Exception as error:  # the border to the library: whatever a user has put into the figure
            number = getattr(figure, "number", "")
            if figure not in self._seen:
                self._remember(figure, "")
            self._say(f"figure {number} could not be drawn: {type(error).__name__}: {error}"[:500])
            figure.stale = False
            return None


def _has_contents(figure: Any) -> bool:
    return any(getattr(figure, each, None) for each in CONTENTS)


def _fit(figure: Any) -> images.Fitted:
    """The picture for a reader, and the one of full size where that is larger."""
    width, height = figure.get_size_inches()
    dpi = figure.dpi
    full = notice = None
    if width * height * dpi * dpi > images.MAX_PIXELS:
        notice = (
            f"a figure of {width * dpi:.0f} x {height * dpi:.0f} pixels is shown smaller, and was not kept so large"
        )
        dpi = 0.95 * images.LONG_SIDE / max(width, height)
    picture = _render(figure, dpi)
    size = images.measure(picture) or (0, 0)
    if max(size) > images.LONG_SIDE and notice is None and len(picture) <= images.MAX_FILE:
        full = picture
    full_size = size
    while max(size) > images.LONG_SIDE:
        # What is drawn beyond the figure's edge does not become smaller in proportion, so it may take a second try.
        dpi *= 0.98 * images.LONG_SIDE / max(size)
        picture = _render(figure, dpi)
        size = images.measure(picture) or (0, 0)
    return images.Fitted(picture, size, full, full_size if full is not None else None, notice)


def _hash(bundle: Bundle) -> str:
    return images.name_of(bundle.data.get(PNG, "").encode("ascii"))


def _render(figure: Any, dpi: float) -> bytes:
    out = io.BytesIO()
    figure.canvas.print_figure(
        out,
        format="png",
        dpi=dpi,
        facecolor=figure.get_facecolor(),
        edgecolor=figure.get_edgecolor(),
        bbox_inches="tight",
    )
    return out.getvalue()
