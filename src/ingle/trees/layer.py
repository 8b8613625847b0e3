"""Layers: what a copy of a session has written to a granted folder, apart from the folder itself. Blocks.

A layer has the form that overlayfs gives it: files and links as they are, a device for each name that was removed, and
a mark on each folder that hides what the granted folder has there.
"""

from ingle.trees.agent import Seen, TreeAgent
from ingle.trees.in_use import InUse
from ingle.trees.index import Index
from ingle.trees.restore import Restored, restore, sweep
from ingle.trees.snapshot import Bounds, take_entries
from ingle.trees.store import KeptLayer, KeptTree, TreeStore
from ingle.trees.tree import visible
from ingle.trees.undo_log import LeftChange
from ingle_worker.wire import trees as wire


def take(upper: TreeAgent, lower: TreeAgent, store: TreeStore, bounds: Bounds, since: int) -> KeptLayer:
    """Keep a layer, and what the folder below it has in these places. Raise NotKept if that is not possible.

    `since` is the time at which the layer was made, in nanoseconds.
    """
    written = upper.entries(bounds.files, layer=True)
    found = lower.find([(each.path, _hides(each)) for each in written], bounds.files)
    after = take_entries(upper, [each for each in written if each.kind != wire.REMOVED], store, Index(), bounds)
    try:
        # What cannot be kept of the layer changes nothing.
        found = [each for each in found if not after.tree.covers(each.path)]
        before = take_entries(lower, found, store, Index(), bounds)
    except BaseException:
        store.release(after)
        raise
    # The kernel alone sets this time. That of a folder tells nothing: any entry of it may have changed.
    late = (each.path for each in found if each.changed > since and each.kind != wire.FOLDER)
    return KeptLayer(before, after, tuple(sorted(visible(path) for path in late)))


def _hides(entry: Seen) -> bool:
    """Return whether an entry of a layer hides all that the folder below has at its path."""
    return entry.kind != wire.FOLDER or entry.text == wire.OPAQUE


def apply(agent: TreeAgent, store: TreeStore, layer: KeptLayer) -> Restored:
    """Write a layer to its folder. Entries that the layer is not about stay as they are."""
    tree = layer.after.tree
    return restore(agent, store, tree, Index(), InUse(), only={*layer.before.tree.entries, *tree.entries})


def undo(agent: TreeAgent, store: TreeStore, bounds: Bounds, left: LeftChange) -> tuple[Restored, list[str]]:
    """Undo the writing of a layer. Return what that did, and the files that others have changed since."""
    sweep(agent, left.drafts)
    paths = left.change.paths
    now = take_entries(agent, agent.find(((path, False) for path in paths), len(paths)), store, Index(), bounds)
    target: KeptTree | None = None
    try:
        target, others = left.target(store, now)
        return restore(agent, store, target.tree, Index(), InUse(), only=paths), others
    finally:
        store.release(now)
        if target is not None:
            store.release(target)
