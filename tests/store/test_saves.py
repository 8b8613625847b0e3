"""Saves of a session that are read while their writer goes on."""

from pathlib import Path

import pytest

from ingle.store.folder import FolderObjects
from ingle.store.saves import SessionSaves, StoredSave
from ingle.store.store import Store


class Overtaken(FolderObjects):
    """Folder in which a save is replaced by the next one at the moment in which it is read."""

    def read(self, path: str) -> bytes | None:
        data = super().read(path)
        if path.endswith(".0000000001"):
            self.write(path.removesuffix("1") + "2", data or b"")
            self.delete(path)
            return None
        return data


@pytest.mark.req("node.lost")
async def test_a_save_that_is_removed_while_it_is_read_has_a_successor(tmp_path: Path) -> None:
    store = Store(Overtaken(tmp_path), "a folder")
    saves = SessionSaves(store, "s")
    await saves.put(1, 1, StoredSave(row=b"{}"))
    found = await saves.newest(2)
    assert found is not None
    assert (found.path, found.save.row) == ("saves/%/s/0000000001.0000000002", b"{}")
    await saves.remove(1)
    assert await saves.newest(2) is None
    store.close()
