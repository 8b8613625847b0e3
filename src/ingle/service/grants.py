"""Verbs for grants: the owner lists, adds and removes folders and hosts that sessions may use."""

from ingle.callers import DEFAULT_TENANT
from ingle.grants import FOLDER, HOST, GrantChange, GrantInfo, NewGrant, Reach
from ingle.service.verbs import Verbs
from ingle.settings import LEVELS, NETWORKS


class Grants(Verbs):
    async def list_grants(self) -> list[GrantInfo]:
        self.access.check_owner("see and change its grants")
        return await self._node.grants.list()

    async def add_grant(self, new: NewGrant) -> GrantChange:
        """Grant a folder or host until the server ends."""
        self.access.check_owner("see and change its grants")
        return await self._node.grants.add(new)

    async def remove_grant(self, grant_id: str) -> GrantChange:
        self.access.check_owner("see and change its grants")
        return await self._node.grants.remove(grant_id)

    async def reach(self) -> Reach:
        """Return what the caller's sessions may use, within the bounds of the caller's token."""
        level = (await self._node.isolation()).level
        bounds = self.access.caller.bounds
        level = max(level, bounds.isolation or level, key=LEVELS.index)
        network = self.settings.network if level == "sandbox" else "full"
        network = max(network, bounds.network or network, key=NETWORKS.index)
        owns = self.access.caller.tenant == DEFAULT_TENANT
        found = [each for each in await self._node.grants.list() if owns or each.tenants == "all"]
        folders = [each for each in found if each.kind == FOLDER]
        start = next((each.name for each in folders if each.start), None)
        return Reach(level, network, folders, [each.name for each in found if each.kind == HOST], start)
