"""Showing: the value of a cell's last expression, and what code shows by `display`.

`display` and `update_display` are builtins, so that a fresh session's globals hold nothing of ours; IPython's own,
where it is installed, lead here too. What is shown has its place among the printed text; what a thread of an earlier
cell shows is marked as background.
"""

import binascii
import builtins
import os
from typing import Any

from ingle_worker.display import ipython_api
from ingle_worker.display.import_hooks import MODULES, Watch
from ingle_worker.display.matplotlib_figures import Figures, choose_backends
from ingle_worker.display.mime import PLAIN, Bundle, add_raw, make, methods_of, plain, shorten
from ingle_worker.session.link import Link
from ingle_worker.session.output_streams import Channel
from ingle_worker.wire.messages import Display, KeepImage, Result

MAX_NOTICES = 20
MAX_ID = 200


class Screen:
    """The one place that everything shown goes through."""

    def __init__(self, link: Link, channel: Channel) -> None:
        self._link = link
        self._channel = channel
        self.value: dict[str, str] | None = None
        """Of the last expression, not yet sent."""
        self.notices: list[str] = []
        """To be said at the end of the running cell."""
        self.figures = Figures(channel, self._publish_figure, self._say)
        self.hook = self._make_hook()

    def install(self) -> None:
        """In the zygote, before any fork."""
        choose_backends()
        watch = Watch()
        watch.install()
        self.figures.watch(watch)
        names = ipython_api.install(watch, self)
        builtins.display, builtins.update_display = names.display, names.update_display  # type: ignore[attr-defined]
        watch.call_after("plotly.io._renderers", self._adopt_plotly)
        watch.call_after("altair", _adopt_altair)

    def _adopt_plotly(self, module: Any) -> None:
        """`figure.show()` wants a package for notebooks before it shows anything; here it needs none."""
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
        """A display hook that keeps the last value in `_`, as Python's own does."""

        def displayhook(value: object) -> None:
            if value is None:
                return
            builtins._ = None  # type: ignore[attr-defined]
            if id(type(value)) in PLAIN:
                data = {"text/plain": shorten(repr(value))}
                if self.value is None:
                    self.value = data
                else:
                    self._send_result(data)
            else:
                self._show_result(value)
            builtins._ = value  # type: ignore[attr-defined]

        return displayhook

    def _send_result(self, data: dict[str, str], metadata: dict[str, Any] | None = None) -> None:
        """Bare, it goes out with the cell's Done, unless something else follows it."""
        self.tell_value()
        if metadata:
            self._link.hold(Result(self._channel.cell, data, metadata))
        else:
            self.value = data

    def tell_value(self) -> None:
        """Before anything else is shown."""
        if self.value is not None:
            self._link.hold(Result(self._channel.cell, self.value))
            self.value = None

    def _show_result(self, value: object) -> None:
        cls = type(value)
        if self.figures.is_figure(cls):
            # The picture is a display, like those of all figures, and there is one of it.
            self.figures.show(value)
            bundle = plain(value)
        elif self._shows_itself(value, cls):
            return
        else:
            bundle = make(value)
        self._account(bundle)
        self._send_result(bundle.data, bundle.metadata)

    def _shows_itself(self, value: Any, cls: type) -> bool:
        """Whether it has the method with which an object shows itself, and no other; then that was called."""
        if id(cls) in PLAIN or issubclass(cls, type):
            return False
        found = methods_of(cls)
        if "_ipython_display_" not in found or "_repr_mimebundle_" in found:
            return False
        try:
            value._ipython_display_()
        except Exception as error:  # the border to the value's own methods
            self._say(f"_ipython_display_ of {cls.__name__} raised {type(error).__name__}: {error}"[:500])
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
        """A bundle that somebody has made already."""
        bundle = Bundle({})
        add_raw(bundle, data, metadata)
        bundle.data.setdefault("text/plain", "")
        self.publish(bundle, display_id=display_id, update=update)

    def new_id(self) -> str:
        return binascii.b2a_hex(os.urandom(16)).decode("ascii")

    def publish(
        self, bundle: Bundle, *, display_id: str | None = None, update: bool = False, background: bool | None = None
    ) -> None:
        link, channel = self._link, self._channel
        if link.abandoned:
            # A process forked by the cell has no wire, but what it prints is captured.
            channel.stdout.write(bundle.data["text/plain"] + "\n")
            return
        if background is None:
            background = channel.crowded and channel.is_background()
        self.tell_value()
        self._account(bundle, background)
        data, metadata = bundle.data, bundle.metadata
        shown_as = None if display_id is None else str(display_id)[:MAX_ID]
        link.send_made(lambda: Display(data, channel.mark(), metadata, shown_as, bool(update), background))

    def _publish_figure(self, bundle: Bundle, background: bool) -> None:
        if not self._link.abandoned:
            self.publish(bundle, background=background)

    def _account(self, bundle: Bundle, background: bool = False) -> None:
        """Send what is to be kept, and remember what is to be said."""
        for file in bundle.files:
            self._link.send(KeepImage(file))
        if not background:
            for notice in bundle.notices:
                self._say(notice)

    def _say(self, notice: str) -> None:
        if len(self.notices) < MAX_NOTICES and notice not in self.notices:
            self.notices.append(notice)

    def take_notices(self) -> list[str]:
        taken, self.notices = self.notices, []
        return taken


def _adopt_altair(module: Any) -> None:
    """Charts as JSON, and without the text that takes whoever reads it for a page that is broken."""
    module.renderers.enable("mimetype")
    for name in list(MODULES):
        if name.startswith("altair.vegalite.v") and name.endswith(".display"):
            MODULES[name].DEFAULT_DISPLAY = str(MODULES[name].DEFAULT_DISPLAY).strip().partition("\n")[0]
