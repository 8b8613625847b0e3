"""Makers: functions that create, while a snapshot is loaded, objects that pickle alone cannot.

A stream names a maker as `ingle_saved.<name>`, not by its module, so that streams stay valid when code moves. A class
is created without running its metaclass, `__init_subclass__` or decorators again.
"""

from ingle_worker.snapshot.rebuild import builtin, classes, functions

__all__ = ["builtin", "classes", "functions"]
