"""What `ingle run` makes of a job's events: text on the terminal, images in a folder, outputs in a notebook."""

import asyncio
import base64
import os
import secrets
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from ingle.cli.failure import Failure
from ingle.cli.foreground import TIMED_OUT, signal_number
from ingle.cli.job import Job, Step
from ingle.cli.terminal import Output
from ingle.errors import IngleError
from ingle.events import AnyEvent, DisplayShown, ErrorRaised, Metadata, MimeBundle, Result, ResultShown, Stderr, Stdout
from ingle.render.image_info import Picture
from ingle.render.mime import SUFFIXES, described, picture_of, text_of
from ingle.render.notebook import Outputs
from ingle.render.phrases import UNNAMED_FILES, left_out_notices


class Show:
    """Shows the events of a job as they come, and knows its exit code."""

    def __init__(self, job: Job, full_image: Callable[[str], Awaitable[bytes]]) -> None:
        """`full_image` fetches an image in full size, by the id in the metadata of the one that is shown."""
        self._job = job
        self._full_image = full_image
        self._output = Output()
        self._outputs = Outputs()
        self._images = 0
        self._by_display: dict[str, str] = {}
        """File of the image, by the id of its display."""
        self._results: list[Result] = []
        self._failed: Result | None = None
        """The first result that decides the exit code."""

    @property
    def exit_code(self) -> int:
        if self._failed is not None:
            return exit_code(self._failed)
        return 0

    def begin(self, step: Step, number: int) -> None:
        """Prepare for the events of the step's cell."""
        outputs = self._outputs.begin_cell()
        if self._job.notebook is not None:
            self._job.notebook.record(step.place, number, outputs)

    async def take(self, event: AnyEvent) -> None:
        if self._job.notebook is not None:
            self._outputs.take(event)
        shown = await self._text(event)
        if shown is not None and not self._job.as_json:
            await self._output.write(*shown)

    async def _text(self, event: AnyEvent) -> tuple[int, str] | None:
        """Return the descriptor and the text to write, and save the image."""
        match event:
            case Stdout():
                return 1, event.text
            case Stderr():
                return 2, event.text
            case ErrorRaised():
                # A program that ended with an exit code has already said why.
                return None if event.name == "SystemExit" else (2, event.traceback.rstrip("\n") + "\n")
            case ResultShown():
                text = await self._shown(event.data, event.metadata, None)
                return (1, text + "\n") if self._job.shows_value else None
            case DisplayShown():
                return 1, await self._shown(event.data, event.metadata, event.display_id) + "\n"
        return None

    async def _shown(self, bundle: MimeBundle, metadata: Metadata, display_id: str | None) -> str:
        picture = picture_of(bundle)
        if self._job.figures is not None and (picture is not None or "image/svg+xml" in bundle):
            return await self._saved(self._job.figures, bundle, picture, metadata, display_id)
        if picture is None:
            return text_of(bundle)
        return f"[{described(picture)}; save images with --figures DIR]"

    async def _saved(
        self, folder: str, bundle: MimeBundle, picture: Picture | None, metadata: Metadata, display_id: str | None
    ) -> str:
        """Write the image to the folder, over the last one of the same display, and return a line about it."""
        if picture is None:
            mime, data = "image/svg+xml", bundle["image/svg+xml"].encode("utf-8", "replace")
        else:
            mime, data = picture.mime, await self._whole(picture, metadata)
        file = self._by_display.get(display_id or "")
        if file is None:
            self._images += 1
            file = os.path.join(folder, f"figure-{self._images}.{SUFFIXES[mime]}")
            if display_id is not None:
                self._by_display[display_id] = file
        try:
            await asyncio.to_thread(_write, file, data)
        except OSError as error:
            raise Failure(f"{file} cannot be written: {error.strerror or error}") from None
        return f"[{described(picture) if picture is not None else mime}: {file}]"

    async def _whole(self, picture: Picture, metadata: Metadata) -> bytes:
        match metadata.get(picture.mime):
            case {"full": {"file": str() as file}}:
                try:
                    return await self._full_image(file)
                except IngleError:
                    pass  # it was removed, so the smaller one is saved
        return base64.b64decode(picture.data)

    async def ended(self, step: Step, result: Result) -> bool:
        """Record the result of a step. Return whether the next one should run."""
        self._results.append(result)
        if not self._job.as_json:
            for line in remarks(result, self._job.timeout):
                await self.remark(line)
        if result.status == "ok":
            return True
        tolerated = step.may_fail and result.status == "error"
        if self._failed is None and not tolerated:
            self._failed = result
        return tolerated or (self._job.keep_going and result.status == "error")

    async def remark(self, line: str) -> None:
        """Say something about the run on standard error."""
        await self._output.write(2, f"ingle: {line}\n")

    async def finish(self) -> None:
        """Print the results as JSON if asked for, and write the notebook."""
        if self._job.as_json:
            told: Any = {"cells": self._results} if self._job.notebook is not None else self._results[0]
            await self._output.write(1, msgspec.json.encode(told).decode() + "\n")
        await self.write_notebook()

    async def write_notebook(self) -> None:
        """Write the notebook with the outputs so far."""
        if self._job.notebook is not None and self._job.output is not None:
            text = self._job.notebook.text().encode("utf-8", "backslashreplace")
            try:
                await asyncio.to_thread(_write, self._job.output, text)
            except OSError as error:
                raise Failure(f"{self._job.output} cannot be written: {error.strerror or error}") from None


def _write(file: str, data: bytes) -> None:
    """Write a file, which gets its name when it is complete."""
    folder = os.path.dirname(file)
    if folder:
        os.makedirs(folder, exist_ok=True)
    draft = f"{file}.{secrets.token_hex(4)}.part"
    try:
        with open(draft, "xb") as opened:
            opened.write(data)
        os.replace(draft, file)
    finally:
        if os.path.exists(draft):
            os.unlink(draft)


def exit_code(result: Result) -> int:
    """Return the exit code that a shell would report."""
    if result.timed_out:
        return TIMED_OUT
    if result.exit is not None:
        if result.exit.signal is not None:
            return 128 + signal_number(result.exit.signal)
        return 1 if result.exit.code is None else result.exit.code
    if result.error is not None and result.error.name == "SystemExit" and result.error.value.isdecimal():
        return int(result.error.value)
    return {"ok": 0, "interrupted": 128 + signal.SIGINT}.get(result.status, 1)


def remarks(result: Result, timeout: float | None) -> list[str]:
    """Return what a person should know that the streams have not shown."""
    if result.timed_out:
        return [f"stopped at its timeout of {timeout:g} s"]
    if result.exit is not None and (result.exit.signal is not None or result.exit.code is None):
        return [f"the session's process {result.exit.message}"]
    if result.exit is not None:
        return []
    # The text was shown as it came, whole. Names of files are in the JSON only, and so is why they are missing.
    untrue = left_out_notices(result)
    return [notice for notice in result.notices if notice not in untrue and not notice.startswith(UNNAMED_FILES)]
