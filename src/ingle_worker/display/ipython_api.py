"""The names of `IPython.display` that notebook code imports, whether IPython is installed or not.

An installed IPython is used, and its displays come here. Otherwise a small module with that name is found. Its finder
comes last, so that a real one wins. It uses no network.
"""

import binascii
import json
import sys
from html import escape
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from ingle_worker.display.import_hooks import ImportWatcher

if TYPE_CHECKING:
    from ingle_worker.display.hook import DisplayHook

PACKAGES = ("IPython", "IPython.core")
MODULES = ("IPython.display", "IPython.core.display", "IPython.core.display_functions")


def install(watch: ImportWatcher, display_hook: "DisplayHook") -> SimpleNamespace:
    """Provide IPython if it is missing, or connect to it. Return the display functions by name."""
    functions = make_functions(display_hook)

    def adopt(module: Any) -> None:
        vars(module).update(vars(functions))

    # A library that is preloaded may have imported IPython: then each of its modules has names of its own by now.
    for name in MODULES:
        watch.call_after(name, adopt)
    sys.meta_path.append(Finder(functions))
    return functions


def make_functions(display_hook: "DisplayHook") -> SimpleNamespace:
    class DisplayHandle:
        """Handle of a display with an id, to update it."""

        def __init__(self, display_id: str | None = None) -> None:
            self.display_id = display_hook.new_id() if display_id is None else display_id

        def __repr__(self) -> str:
            return f"<DisplayHandle display_id={self.display_id}>"

        def display(self, obj: Any, **options: Any) -> None:
            display(obj, display_id=self.display_id, **options)

        def update(self, obj: Any, **options: Any) -> None:
            update_display(obj, display_id=self.display_id, **options)

    def display(
        *objs: Any,
        include: Any = None,
        exclude: Any = None,
        metadata: Any = None,
        transient: Any = None,
        display_id: Any = None,
        raw: bool = False,
        clear: bool = False,
        update: bool = False,
        **options: Any,
    ) -> Any:
        """Show values as richly as they can be shown. With `display_id` (True for a new one) they can be updated."""
        name = None
        if display_id is not None and display_id is not False:
            name = display_hook.new_id() if display_id is True else str(display_id)
        for each in objs:
            if raw:
                display_hook.show_raw(each, metadata, name, update)
            else:
                display_hook.show(each, metadata=metadata, display_id=name, update=update)
        return None if name is None or update else DisplayHandle(name)

    def update_display(obj: Any, *, display_id: Any, **options: Any) -> None:
        """Show a value in place of what was shown with this id."""
        display(obj, display_id=display_id, **{**options, "update": True})

    def publish_display_data(
        data: Any, metadata: Any = None, *, transient: Any = None, update: bool = False, **options: Any
    ) -> None:
        """Show a mime bundle."""
        name = transient.get("display_id") if isinstance(transient, dict) else None
        display_hook.show_raw(data, metadata, name, update)

    def clear_output(wait: bool = False) -> None:
        """Do nothing: displays stay in the timeline."""

    functions = (display, update_display, publish_display_data, clear_output)
    for function in functions:
        function.__module__ = DisplayHandle.__module__ = "IPython.display"
        function.__qualname__ = function.__name__
    DisplayHandle.__qualname__ = "DisplayHandle"
    return SimpleNamespace(**{each.__name__: each for each in (*functions, DisplayHandle)})


class Finder:
    """Finder at the end of `sys.meta_path`, so that an installed IPython wins."""

    def __init__(self, functions: SimpleNamespace) -> None:
        self._functions = functions

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name in PACKAGES or name in MODULES:
            return ModuleSpec(name, self, is_package=name in PACKAGES)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == "IPython":
            module.__dict__.update(__version__="0.0.0", version_info=(0, 0, 0, ""), get_ipython=_no_shell)
        elif module.__name__ in MODULES:
            vars(module).update(vars(self._functions))
            if module.__name__ != "IPython.core.display_functions":
                vars(module).update({each.__name__: each for each in OBJECTS})
                vars(module).update(_shortcuts(self._functions.display), set_matplotlib_formats=_ignore)
        else:
            return
        module.__doc__ = "The part of IPython that notebook code needs, provided by ingle."


def _no_shell() -> None:
    """Return None: there is no IPython shell."""


def _ignore(*args: Any, **options: Any) -> None:
    """Accept all arguments without effect."""


def _shortcuts(display: Any) -> dict[str, Any]:
    """Return `display_html` and the like. With `raw`, text is converted to that kind first."""

    def make(kind: Any) -> Any:
        def show(*objs: Any, raw: bool = False, metadata: Any = None, **options: Any) -> None:
            display(*(kind(each) if raw else each for each in objs), metadata=metadata)

        return show

    kinds = (HTML, Markdown, SVG, Latex, JSON, Javascript, Pretty)
    return {f"display_{kind.__name__.lower()}": make(kind) for kind in kinds}


# --- display objects ---


class DisplayObject:
    """An object that already has the form in which it is shown."""

    _binary = False

    def __init__(self, data: Any = None, url: Any = None, filename: Any = None, metadata: Any = None) -> None:
        if filename is None and url is None and not self._binary and hasattr(data, "__fspath__"):
            data, filename = None, data
        self.data = data
        self.url = url
        self.filename = None if filename is None else str(filename)
        self.metadata = metadata if metadata is not None else {}
        self.reload()

    def reload(self) -> None:
        """Read the file again, if it came from one."""
        if self.filename is not None:
            with open(self.filename, "rb") as file:
                content = file.read()
            self.data = content if self._binary else content.decode("utf-8")

    def __repr__(self) -> str:
        return f"<IPython.core.display.{type(self).__name__} object>"

    def _with_metadata(self) -> Any:
        return (self.data, self.metadata) if self.metadata else self.data


class TextDisplayObject(DisplayObject):
    """Text of some kind."""

    def __init__(self, data: Any = None, url: Any = None, filename: Any = None, metadata: Any = None) -> None:
        super().__init__(data, url, filename, metadata)
        if self.data is not None and not isinstance(self.data, str):
            raise TypeError(f"{type(self).__name__} expects text, not {self.data!r:.80}")


class Pretty(TextDisplayObject):
    def __repr__(self) -> str:
        return str(self.data)


class HTML(TextDisplayObject):
    def _repr_html_(self) -> Any:
        return self._with_metadata()

    def __html__(self) -> Any:
        return self.data


class Markdown(TextDisplayObject):
    def _repr_markdown_(self) -> Any:
        return self._with_metadata()


class Latex(TextDisplayObject):
    def _repr_latex_(self) -> Any:
        return self._with_metadata()


class Math(TextDisplayObject):
    def _repr_latex_(self) -> Any:
        return f"$\\displaystyle {str(self.data).strip('$')}$"


class SVG(TextDisplayObject):
    def _repr_svg_(self) -> Any:
        return self._with_metadata()


class Javascript(TextDisplayObject):
    def _repr_javascript_(self) -> Any:
        return self._with_metadata()


class Code(TextDisplayObject):
    def __init__(self, data: Any = None, url: Any = None, filename: Any = None, language: Any = None) -> None:
        self.language = language
        super().__init__(data, url, filename)

    def __repr__(self) -> str:
        return str(self.data)

    def _repr_html_(self) -> str:
        return f"<pre><code>{escape(str(self.data))}</code></pre>"


class JSON(DisplayObject):
    def __init__(
        self,
        data: Any = None,
        url: Any = None,
        filename: Any = None,
        expanded: bool = False,
        metadata: Any = None,
        root: str = "root",
        **options: Any,
    ) -> None:
        about = {"expanded": expanded, "root": root, **(metadata or {}), **options}
        super().__init__(data, url, filename, about)
        if isinstance(self.data, str):
            self.data = json.loads(self.data)

    def _repr_json_(self) -> Any:
        return self._with_metadata()


class GeoJSON(JSON):
    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        return {"application/geo+json": self.data, "text/plain": repr(self)}, {"application/geo+json": self.metadata}


class Image(DisplayObject):
    """A picture from bytes or a file. One with only an address is loaded by the page."""

    _binary = True

    def __init__(
        self,
        data: Any = None,
        url: Any = None,
        filename: Any = None,
        format: Any = None,
        embed: Any = None,
        width: Any = None,
        height: Any = None,
        retina: bool = False,
        unconfined: bool = False,
        metadata: Any = None,
        alt: Any = None,
    ) -> None:
        if hasattr(data, "__fspath__"):
            data, filename = None, data
        elif isinstance(data, str):
            if data.startswith(("http://", "https://", "data:")):
                data, url = None, data
            else:
                data, filename = None, data
        self.width, self.height, self.alt = width, height, alt
        self.format = str(format).lower() if format else None
        super().__init__(data, url, filename, metadata)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        sizes = {"width": self.width, "height": self.height, "alt": self.alt}
        about = {**self.metadata, **{name: value for name, value in sizes.items() if value is not None}}
        if self.data is None:
            named = "".join(f' {name}="{escape(str(value))}"' for name, value in about.items())
            return {"text/html": f'<img src="{escape(str(self.url))}"{named}/>', "text/plain": repr(self)}
        mime = self._mime()
        return {mime: self.data, "text/plain": repr(self)}, {mime: about}

    def _mime(self) -> str:
        start = bytes(self.data[:16])
        if start[:2] == b"\xff\xd8":
            return "image/jpeg"
        if start[:4] == b"GIF8":
            return "image/gif"
        if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
            return "image/webp"
        if self.format == "svg" or start.lstrip()[:1] == b"<":
            return "image/svg+xml"
        return f"image/{'jpeg' if self.format == 'jpg' else self.format or 'png'}"


class IFrame(DisplayObject):
    def __init__(self, src: Any, width: Any = "100%", height: Any = 400, extras: Any = None, **options: Any) -> None:
        self.src, self.width, self.height = src, width, height
        super().__init__()

    def _repr_html_(self) -> str:
        size = f'width="{escape(str(self.width))}" height="{escape(str(self.height))}"'
        return f'<iframe src="{escape(str(self.src))}" {size} frameborder="0" allowfullscreen></iframe>'


class Media(DisplayObject):
    """Sound or video: bytes or a file inside of the page, or an address."""

    _binary = True
    _tag = "audio"
    _default = "audio/wav"

    def __init__(
        self, data: Any = None, filename: Any = None, url: Any = None, mimetype: Any = None, **options: Any
    ) -> None:
        if isinstance(data, str):
            if data.startswith(("http://", "https://")):
                data, url = None, data
            else:
                data, filename = None, data
        self.mimetype = mimetype or self._default
        super().__init__(data, url, filename)
        if self.data is not None and not isinstance(self.data, bytes):
            raise TypeError(f"{type(self).__name__} takes bytes, a file or an address here, not {type(data).__name__}")

    def _repr_html_(self) -> str:
        source = str(self.url)
        if self.data is not None:
            source = f"data:{self.mimetype};base64,{binascii.b2a_base64(self.data, newline=False).decode('ascii')}"
        return f'<{self._tag} controls src="{escape(source)}"></{self._tag}>'


class Audio(Media): ...


class Video(Media):
    _tag = "video"
    _default = "video/mp4"


class FileLink(DisplayObject):
    def __init__(self, path: Any, **options: Any) -> None:
        self.path = str(path)
        super().__init__()

    def __repr__(self) -> str:
        return self.path

    def _repr_html_(self) -> str:
        return f'<a href="{escape(self.path)}">{escape(self.path)}</a>'


OBJECTS = (
    DisplayObject, TextDisplayObject, Pretty, HTML, Markdown, Latex, Math, SVG, Javascript, Code, JSON, GeoJSON,
    Image, IFrame, Audio, Video, FileLink,
)  # fmt: skip
for _each in OBJECTS:
    _each.__module__ = "IPython.core.display"
