"""Granted folders as one copy of a session sees them: what it has written there, and whether that can be committed."""

import msgspec

from ingle import errors
from ingle.files import FileDiff
from ingle.render.phrases import some
from ingle.sessions.persistence.checkpoint_files import CheckpointFiles
from ingle.trees.store import KeptLayer, NotKept
from ingle.trees.tree import MAX_NAMED, visible
from ingle.trials import Effect
from ingle.workers.views import LayeredFolders
from ingle.workers.worker import Worker


class GrantedFolders:
    def __init__(self, folders: CheckpointFiles, worker: Worker, protected: LayeredFolders) -> None:
        """`folders` are those of the session, and `worker` is the copy."""
        self._folders = folders
        self._worker = worker
        self.protected = protected
        self._known: dict[str, set[str]] = {}
        """By folder: files that were there when the effect was told."""
        self.changed: list[str] = []
        """Files that differ in these folders, as the effect tells them."""

    async def take(self) -> dict[str, KeptLayer]:
        """Keep what the copy has written. The caller releases it. Raise Conflict if it cannot be committed."""
        layers = await self._take()
        contested = [path for folder, layer in layers.items() for path in self._contested(folder, layer)]
        if contested:
            self._folders.layers.release(layers)
            raise errors.FilesChanged(
                f"the trial cannot be committed, because others have changed the same files since it began: "
                f"{some(contested, MAX_NAMED)}; discard it, and run the code again"
            )
        return layers

    async def check(self) -> None:
        """Raise Conflict if what the copy has written cannot be committed."""
        self._folders.layers.release(await self.take())

    async def _take(self) -> dict[str, KeptLayer]:
        if not self.protected.layers or not self._worker.alive:
            return {}  # A trial without a process is not committed.
        try:
            return await self._folders.layers.take(self._worker, self.protected)
        except NotKept as why:
            raise errors.Conflict(f"the files of the trial cannot be taken over: {why}; discard it") from None

    def _contested(self, folder: str, layer: KeptLayer) -> list[str]:
        """Return files that others have changed or removed, and that the layer has too."""
        before, after = layer.before.tree.entries, layer.after.tree.entries
        gone = self._known.get(folder, set()) - before.keys()
        return [f"{folder}/{path}" for path in (*layer.contested, *(visible(each) for each in gone if each in after))]

    async def add_to(self, effect: Effect) -> Effect:
        """Return the effect of the copy with what it has written to granted folders."""
        notices = [f"{folder} can only be read in a trial: {why}" for folder, why in self.protected.read_only.items()]
        try:
            layers = await self._take()
        except errors.Conflict as why:
            return msgspec.structs.replace(effect, notices=[*effect.notices, *notices, why.message])
        try:
            return await self._with_layers(effect, layers, notices)
        finally:
            self._folders.layers.release(layers)

    async def _with_layers(self, effect: Effect, layers: dict[str, KeptLayer], notices: list[str]) -> Effect:
        files: list[FileDiff] = []
        own = self._folders.folder
        more = effect.more_files
        for folder, layer in layers.items():
            some_files, some_more = await self._folders.layers.differences(layer)
            files += [self._folders.renamed(folder, each) for each in some_files]
            more += some_more
            self._known[folder] = {path for path, each in layer.before.tree.entries.items() if each.kind != "folder"}
            notices += [f"{folder}: {each}" for each in layer.after.tree.notices]
            if contested := self._contested(folder, layer):
                notices.append(f"others have changed the same files meanwhile: {some(contested, MAX_NAMED)}")
        self.changed = sorted(each.path for each in files)
        if effect.files is not None:
            files += [self._folders.renamed(own, each) for each in effect.files]
            effect = msgspec.structs.replace(effect, files=sorted(files, key=lambda each: each.path))
        elif files:
            notices.append(f"files of granted folders that differ: {some(self.changed, MAX_NAMED)}")
        return msgspec.structs.replace(effect, more_files=more, notices=[*effect.notices, *notices])
