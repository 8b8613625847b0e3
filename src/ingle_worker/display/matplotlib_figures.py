"""Figures of matplotlib: drawn without a screen, shown once, and shown again when they change.

They are shown at the end of the cell, at `show()`, and before the cell waits for input. Figures that pyplot holds are
then closed. A figure that the user references is watched: `stale` says when to look, and its picture decides whether it
changed. Figures of earlier cells' threads are shown as background. matplotlib is never imported here, and a figure that
cannot be drawn becomes a notice.
"""

import _signal  # type: ignore[import-not-found]
import io
import os
from collections.abc import Callable
from time import monotonic
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from ingle_worker.display import images
from ingle_worker.display.import_hooks import ImportWatcher, loaded
from ingle_worker.display.mime import Bundle, add_mimebundle, methods_of
from ingle_worker.session.output_streams import OutputStreams

PYPLOT = "matplotlib._pylab_helpers"
"""Module that holds pyplot's figures. It is loaded with pyplot."""
PNG = "image/png"
CONTENT_ATTRIBUTES = ("axes", "lines", "patches", "texts", "images", "artists", "legends", "subfigs")
"""Attributes with the parts of a figure. A figure without any is not shown."""


INTERRUPTED_DRAW_SECONDS = 0.5
"""Seconds to draw figures of an interrupted cell: half of the default time between a timeout and the kill."""


class TooSlow(BaseException):
    """Time is over. It is no Exception, so that drawing code does not catch it."""


class Alarm:
    """Context that raises TooSlow in the main thread after some seconds. The user's own alarm is suspended."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        self._began = monotonic()
        self._handler = _signal.signal(_signal.SIGALRM, self._on_alarm)
        self._left, self._every = _signal.setitimer(_signal.ITIMER_REAL, self._seconds)

    @staticmethod
    def _on_alarm(number: int, frame: Any) -> None:
        raise TooSlow

    def __exit__(self, *exc: object) -> None:
        _signal.setitimer(_signal.ITIMER_REAL, 0)
        if self._handler is not None:
            _signal.signal(_signal.SIGALRM, self._handler)
        if self._left:
            left = max(self._left - (monotonic() - self._began), 0.001)
            _signal.setitimer(_signal.ITIMER_REAL, left, self._every)


def choose_backends() -> None:
    """Choose backends without a screen or browser, before a library is imported. The operator's choice wins."""
    os.environ.setdefault("MPLBACKEND", "Agg")
    os.environ.setdefault("PLOTLY_RENDERER", "plotly_mimetype")


class Figures:
    def __init__(
        self, output: OutputStreams, publish: Callable[[Bundle, bool], None], add_notice: Callable[[str], None]
    ) -> None:
        self._output = output
        self._publish = publish
        self._add_notice = add_notice
        self._seen: WeakKeyDictionary[Any, tuple[str, int]] = WeakKeyDictionary()
        """Hash of the last shown picture of a figure, and its cell."""
        self.any = False
        """Whether there ever was a figure. Checked at the end of every cell, where the dictionary may be broken."""
        self._background_figures: WeakSet[Any] = WeakSet()
        """Figures made by background code."""

    def watch(self, imports: ImportWatcher) -> None:
        imports.call_after("matplotlib.backend_bases", self._patch_managers)
        imports.call_after("matplotlib.figure", self._patch_figure)
        imports.call_after("matplotlib.pyplot", self._patch_pyplot)

    # --- patches of matplotlib ---

    def _patch_managers(self, module: Any) -> None:
        """Patch managers of backends without a screen: `show` shows here, and figures of background code are noted."""
        base = module.FigureManagerBase
        make = base.__init__

        def __init__(manager: Any, *args: Any, **options: Any) -> None:
            make(manager, *args, **options)
            if self._output.is_background():
                self._background_figures.add(manager.canvas.figure)

        def show(manager: Any) -> None:
            self.show(manager.canvas.figure)

        __init__.__doc__, show.__doc__ = make.__doc__, base.show.__doc__
        base.__init__, base.show = __init__, show

    def _patch_figure(self, module: Any) -> None:
        """Let a figure that was closed here, not by the user, still show itself."""
        original = module.Figure.show

        def show(figure: Any, warn: bool = True) -> None:
            if figure.canvas.manager is None and figure in self._seen:
                self.show(figure)
            else:
                original(figure, warn)

        show.__doc__ = original.__doc__
        module.Figure.show = show

    def _patch_pyplot(self, module: Any) -> None:
        original = module.show

        def show(*args: Any, **options: Any) -> Any:
            if self._managers(screen=True):
                return original(*args, **options)
            self._collect(close=True, background=self._output.is_background())
            return None

        show.__doc__, show.__name__, show.__module__ = original.__doc__, "show", original.__module__
        module.show = show

    # --- when figures are shown ---

    def cell_begins(self) -> None:
        """Show figures that were made between the cells as background."""
        if loaded(PYPLOT, "Gcf") is not None:
            self._collect(close=True, background=True, all=True)

    def cell_ends(self, *, interrupted: bool = False) -> None:
        """Show figures at the end of a cell. An interrupt stops the drawing and is raised to the caller.

        After an interrupt of the cell itself, the time is short: after its timeout the process may be killed soon.
        """
        if not self.any and loaded(PYPLOT, "Gcf") is None:
            return
        if not interrupted:
            self._collect(close=True, background=False)
            return
        try:
            with Alarm(INTERRUPTED_DRAW_SECONDS):
                self._collect(close=True, background=False)
        except TooSlow:
            seconds = f"{INTERRUPTED_DRAW_SECONDS:g} s"
            self._add_notice(f"figures of this interrupted cell took longer than {seconds} to draw and are not shown")

    def input_waits(self) -> None:
        if loaded(PYPLOT, "Gcf") is not None and not self._output.is_background():
            self._collect(close=False, background=False)

    def is_figure(self, cls: type) -> bool:
        kind = loaded("matplotlib.figure", "Figure")
        return isinstance(kind, type) and any(base is kind for base in type.__dict__["__mro__"].__get__(cls))

    def show(self, figure: Any) -> None:
        """Show a figure on request, unless the same picture was already shown in this cell."""
        self._show(figure, self._output.is_background(), asked=True)

    def draw(self, figure: Any) -> Bundle | None:
        """Return the bundle of a figure for a caller that shows it itself. The picture then counts as shown."""
        if not _has_contents(figure):
            return None
        bundle = self._draw(figure)
        if bundle is not None:
            self._remember(figure, _hash(bundle))
        return bundle

    # --- collecting ---

    @staticmethod
    def _managers(*, screen: bool = False) -> list[Any]:
        """Return pyplot's managers: those that draw into memory, or those with a screen."""
        figs = getattr(loaded(PYPLOT, "Gcf"), "figs", None)
        base = loaded("matplotlib.backend_bases", "FigureManagerBase")
        if not isinstance(figs, dict) or base is None:
            return []
        return [each for each in figs.values() if (type(each).show is not base.show) == screen]

    def _collect(self, *, close: bool, background: bool, all: bool = False) -> None:
        try:
            self._collect_some(close, background, all)
        except Exception as error:  # library code: another version, or another module of that name
            self._add_notice(f"figures could not be found: {type(error).__name__}: {error}"[:500])

    def _collect_some(self, close: bool, background: bool, all: bool) -> None:
        managers = [
            each for each in self._managers() if all or (each.canvas.figure in self._background_figures) == background
        ]
        if all:
            # An empty figure is being made by a thread, and would be lost if it were closed now.
            managers = [each for each in managers if _has_contents(each.canvas.figure)]
        figures = [each.canvas.figure for each in managers]
        figures += [
            each
            for each in list(self._seen)
            if each.stale and each not in figures and (each in self._background_figures) == background
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
        if before is None or before[0] != picture or (asked and before[1] != self._output.cell):
            self._publish(bundle, background)

    def _remember(self, figure: Any, picture: str) -> None:
        self.any = True
        self._seen[figure] = (picture, self._output.cell)

    def _draw(self, figure: Any) -> Bundle | None:
        try:
            bundle = Bundle({"text/plain": repr(figure)})
            bundle.add_fitted(PNG, _fit(figure))
            if "_repr_mimebundle_" in methods_of(type(figure)):
                # matplotlib has none. Code that adds one to the class shows figures in further forms.
                add_mimebundle(bundle, figure)
            figure.stale = False
            return bundle
        except Exception as error:  # library code: the figure may contain anything
            number = getattr(figure, "number", "")
            if figure not in self._seen:
                self._remember(figure, "")
            self._add_notice(f"figure {number} could not be drawn: {type(error).__name__}: {error}"[:500])
            figure.stale = False
            return None


def _has_contents(figure: Any) -> bool:
    return any(getattr(figure, each, None) for each in CONTENT_ATTRIBUTES)


def _fit(figure: Any) -> images.Fitted:
    """Return the picture for a reader, and the one of full size if that is larger."""
    width, height = figure.get_size_inches()
    dpi = figure.dpi
    full = notice = None
    if width * height * dpi * dpi > images.MAX_PIXELS:
        notice = (
            f"a figure of {width * dpi:.0f} x {height * dpi:.0f} pixels is shown smaller, and is not stored in full"
        )
        dpi = 0.95 * images.MAX_SIDE_PIXELS / max(width, height)
    picture = _render(figure, dpi)
    size = images.measure(picture) or (0, 0)
    if max(size) > images.MAX_SIDE_PIXELS and notice is None and len(picture) <= images.MAX_FILE_BYTES:
        full = picture
    full_size = size
    while max(size) > images.MAX_SIDE_PIXELS:
        # Parts beyond the figure's edge do not shrink in proportion, so a second try may be needed.
        dpi *= 0.98 * images.MAX_SIDE_PIXELS / max(size)
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
