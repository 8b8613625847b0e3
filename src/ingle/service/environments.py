"""Verbs for environments: build, list and remove. Only the owner of the server may change them."""

from ingle.callers import READ
from ingle.environments.shapes import EnvironmentInfo, NewEnvironment
from ingle.service.verbs import Verbs


class Environments(Verbs):
    async def list_environments(self) -> list[EnvironmentInfo]:
        self.access.check(READ)
        return await self._node.environments.list()

    async def build_environment(self, name: str, new: NewEnvironment, *, wait: float | None = None) -> EnvironmentInfo:
        """Create an environment or build it anew, and return it once it is built, or after `wait` seconds.

        Sessions of an earlier build keep it. A build that fails leaves the earlier one in place.
        """
        self.access.check_owner("change environments")
        return await self._node.environments.build(name, new, self._wait(wait))

    async def remove_environment(self, name: str) -> None:
        """Remove an environment that no session uses."""
        self.access.check_owner("change environments")
        await self._node.environments.remove(name)
