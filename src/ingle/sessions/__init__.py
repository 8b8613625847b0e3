"""Sessions: live interpreters with a name, each an actor that owns its worker and its one running cell."""
