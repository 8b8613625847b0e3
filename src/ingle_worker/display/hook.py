"""Display of values: the value of a cell's last expression, and `display()`.

`display` and `update_display` are builtins, so a new session's globals hold no names of ingle. IPython's functions, if
installed, come here too. A display keeps its position among the printed text. Displays of earlier cells' threads are
marked as background.
"""

import binascii
import builtins
import os
from typing import Any

from ingle_worker.display import ipython_api
from ingle_worker.display.import_hooks import MODULES, ImportWatcher
from ingle_worker.display.matplotlib_figures import Figures, choose_backends
from ingle_worker.display.mime import PLAIN, Bundle, add_raw, make, methods_of, plain, shorten
from ingle_worker.processes import gpu_limit
from ingle_worker.session.link import Link
from ingle_worker.session.output_streams import OutputStreams
from ingle_worker.session.traceback_text import extend_bdb, extend_pdb
from ingle_worker.wire.messages import Display, KeepImage, Result

MAX_NOTICES = 20
MAX_ID_CHARS = 200


class DisplayHook:
    """Display hook of the session. Everything shown goes through it."""

    def __init__(self, link: Link, output: OutputStreams) -> None:
        self._link = link
        self._output = output
        self.value: dict[str, str] | None = None
        """Value of the last expression, not yet sent."""
        self.notices: list[str] = []
        """Notices for the end of the running cell."""
        self.figures = Figures(output, self._publish_figure, self._add_notice)
        self.hook = self._make_hook()

    def install(self) -> None:
        """Install all hooks in the zygote, before any fork."""
        choose_backends()
        watch = ImportWatcher()
        watch.install()
        self.figures.watch(watch)
        names = ipython_api.install(watch, self)
        builtins.display, builtins.update_display = names.display, names.update_display  # type: ignore[attr-defined]
        watch.call_after("plotly.io._renderers", self._patch_plotly)
        watch.call_after("altair", _patch_altair)
        watch.call_after("bdb", extend_bdb)
        watch.call_after("pdb", extend_pdb)
        gpu_limit.watch(watch)

    def _patch_plotly(self, module: Any) -> None:
        """Make `figure.show()` work without a notebook package."""
        original = module.show

        def show(fig: Any, renderer: Any = None, validate: bool = True, **options: Any) -> None:
            if renderer is None and str(module.renderers.default).startswith("plotly_mimetype"):
                self.show(fig)
            else:
                original(fig, renderer, validate, **options)

        show.__doc__ = original.__doc__
        module.show = show

    # --- the last expression ---

    def _make_hook(self) -> Any:
        """Return a display hook that stores the last value in `_`, as Python's does."""

        def displayhook(value: object) -> None:
            if value is None:
                return
            builtins._ = None  # type: ignore[attr-defined]
            if id(type(value)) in PLAIN:
                data = {"text/plain": shorten(repr(value))}
                if self._link.abandoned:
                    self._output.stdout.write(data["text/plain"] + "\n")
                elif self.value is None:
                    self.value = data
                else:
                    self._send_result(data)
            else:
                self._show_result(value)
            builtins._ = value  # type: ignore[attr-defined]

        return displayhook

    def _send_result(self, data: dict[str, str], metadata: dict[str, Any] | None = None) -> None:
        """Store a result without metadata for the cell's Done, or send it."""
        if self._link.abandoned:
            # A process forked by the cell has no wire, but its output is captured.
            self._output.stdout.write(data["text/plain"] + "\n")
            return
        self.send_value()
        if metadata:
            self._link.queue(Result(self._output.cell, data, metadata))
        else:
            self.value = data

    def send_value(self) -> None:
        """Send the stored value. Called before anything else is shown."""
        if self.value is not None:
            self._link.queue(Result(self._output.cell, self.value))
            self.value = None

    def input_waits(self) -> None:
        """Show everything before a reader waits for input, because the reader's answer may depend on it."""
        self.send_value()
        self.figures.input_waits()

    def _show_result(self, value: object) -> None:
        cls = type(value)
        if self.figures.is_figure(cls):
            # The picture is a display like that of every figure, and is sent once.
            self.figures.show(value)
            bundle = plain(value)
        elif self._shows_itself(value, cls):
            return
        else:
            bundle = make(value)
        self._send_files(bundle)
        self._send_result(bundle.data, bundle.metadata)

    def _shows_itself(self, value: Any, cls: type) -> bool:
        """Call `_ipython_display_` if the class has it and no mime bundle. Return whether it was called."""
        if id(cls) in PLAIN or issubclass(cls, type):
            return False
        found = methods_of(cls)
        if "_ipython_display_" not in found or "_repr_mimebundle_" in found:
            return False
        try:
            value._ipython_display_()
        except Exception as error:  # user code: methods of the value
            self._add_notice(f"_ipython_display_ of {cls.__name__} raised {type(error).__name__}: {error}"[:500])
            return False
        return True

    # --- display() ---

    def show(self, value: Any, *, metadata: Any = None, display_id: str | None = None, update: bool = False) -> None:
        cls = type(value)
        if self.figures.is_figure(cls):
            if display_id is None:
                self.figures.show(value)
                return
            bundle = self.figures.draw(value) or plain(value)
        elif not update and self._shows_itself(value, cls):
            return
        else:
            bundle = make(value)
        for mime, about in metadata.items() if isinstance(metadata, dict) else ():
            if mime in bundle.data:
                bundle.describe(mime, about)
        self.publish(bundle, display_id=display_id, update=update)

    def show_raw(self, data: Any, metadata: Any = None, display_id: str | None = None, update: bool = False) -> None:
        """Show a ready mime bundle."""
        bundle = Bundle({})
        add_raw(bundle, data, metadata)
        bundle.data.setdefault("text/plain", "")
        self.publish(bundle, display_id=display_id, update=update)

    def new_id(self) -> str:
        return binascii.b2a_hex(os.urandom(16)).decode("ascii")

    def publish(
        self, bundle: Bundle, *, display_id: str | None = None, update: bool = False, background: bool | None = None
    ) -> None:
        link, output = self._link, self._output
        if link.abandoned:
            # A process forked by the cell has no wire, but its output is captured.
            output.stdout.write(bundle.data["text/plain"] + "\n")
            return
        if background is None:
            background = output.crowded and output.is_background()
        self.send_value()
        self._send_files(bundle, background)
        data, metadata = bundle.data, bundle.metadata
        shown_as = None if display_id is None else str(display_id)[:MAX_ID_CHARS]
        link.send_made(lambda: Display(data, output.mark(), metadata, shown_as, bool(update), background))

    def _publish_figure(self, bundle: Bundle, background: bool) -> None:
        if not self._link.abandoned:
            self.publish(bundle, background=background)

    def _send_files(self, bundle: Bundle, background: bool = False) -> None:
        """Send the files of a bundle to the host and store its notices."""
        for file in bundle.files:
            self._link.send(KeepImage(file))
        if not background:
            for notice in bundle.notices:
                self._add_notice(notice)

    def _add_notice(self, notice: str) -> None:
        if len(self.notices) < MAX_NOTICES and notice not in self.notices:
            self.notices.append(notice)

    def take_notices(self) -> list[str]:
        taken, self.notices = self.notices, []
        return taken


def _patch_altair(module: Any) -> None:
    """Make altair show charts as JSON, without its hint that the page is broken."""
    module.renderers.enable("mimetype")
    for name in list(MODULES):
        if name.startswith("altair.vegalite.v") and name.endswith(".display"):
            MODULES[name].DEFAULT_DISPLAY = str(MODULES[name].DEFAULT_DISPLAY).strip().partition("\n")[0]
