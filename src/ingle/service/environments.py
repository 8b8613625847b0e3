"""Verbs for environments: build, list and remove. Only the owner of the server may change them."""

from ingle import errors
from ingle.callers import ADMIN, DEFAULT_TENANT, READ
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
        self._check_owner()
        return await self._node.environments.build(name, new, self._wait(wait))

    async def remove_environment(self, name: str) -> None:
        """Remove an environment that no session uses."""
        self._check_owner()
        await self._node.environments.remove(name)

    def _check_owner(self) -> None:
        """Raise Forbidden for all but the owner, because a build runs code of packages with the server's rights."""
        self.access.check(ADMIN)
        if self.access.caller.tenant != DEFAULT_TENANT:
            raise errors.Forbidden("only the owner of this server may change environments; ask the operator")
