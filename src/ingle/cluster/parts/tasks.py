"""Shell tasks of a cluster. The id of a task ends with the agent that runs it."""

from collections.abc import AsyncIterator

from ingle import errors
from ingle.cluster.agents import Agents, ConnectedAgent
from ingle.cluster.placement import home_of
from ingle.cluster.router import Router
from ingle.events import Task
from ingle.nodes import TaskHandle
from ingle.requests import NewTask


class ClusterTasks:
    """Shell tasks of all agents."""

    def __init__(self, agents: Agents, router: Router) -> None:
        self._agents = agents
        self._router = router

    async def start(self, new: NewTask) -> str:
        agent = await self._agent_for(new.tenant, new.session_key)
        return await agent.agent.node.tasks.start(new)

    def task(self, task_id: str, tenant: str) -> TaskHandle:
        agent = self._agents.up.get(task_id.rpartition("-")[2])
        if agent is None:
            raise errors.TaskNotFound(task_id)
        return agent.agent.node.tasks.task(task_id, tenant)

    async def end_shell(self, tenant: str, session_key: str | None, name: str) -> bool:
        agent = await self._agent_for(tenant, session_key)
        return await agent.agent.node.tasks.end_shell(tenant, session_key, name)

    async def list(self, tenant: str, limit: int, before: str | None) -> AsyncIterator[Task]:
        first = None if before is None else await self.task(before, tenant).wait(0.0)
        found: list[Task] = []
        for each in list(self._agents.up.values()):
            own = before if before is not None and before.endswith(f"-{each.info.incarnation}") else None
            found += [task async for task in each.agent.node.tasks.list(tenant, limit, own)]
        found.sort(key=lambda task: task.created_at)
        if first is not None:
            found = [each for each in found if each.created_at <= first.created_at and each.task_id != before]
        for task in found[-limit:]:
            yield task

    async def _agent_for(self, tenant: str, session_key: str | None) -> ConnectedAgent:
        """Return the agent of a session. Without one, a tenant's commands share one machine, and so their folder."""
        if session_key is not None:
            return await self._router.find(session_key)
        if not self._agents.up:
            raise errors.Unavailable("no agent of the cluster is in reach; start one, or try again")
        return self._agents.up[home_of(self._agents.up, tenant)]
