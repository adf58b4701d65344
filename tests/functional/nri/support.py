"""What the tests about hosted NRI plugins share: a daemon that hosts, plugins, and what the runtime has."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Optional

from cri_api import runtime_v1_pb2 as cri
from tests.agent import Agent
from tests.cri_client import CriClient, Pod, RawReply, container_config, create_request, pod_config
from tests.fake_runtime import ContainerRecord, FakeRuntime
from tests.functional.conftest import until
from tests.nri.io.host import plugins
from tests.nri.io.host.plugin import ScriptedPlugin
from tests.nri.io.host.plugins import Log, Plugin

CREATE = "/runtime.v1.RuntimeService/CreateContainer"
RUN = "/runtime.v1.RuntimeService/RunPodSandbox"


def hosting(**more: Any) -> dict[str, Any]:
    """Settings of a daemon that hosts plugins; ``more``: of the section ``nri``."""
    return {"host": "on", **more}


class PluginHere(ScriptedPlugin):
    """In the process of the tests, whose standard input is none of its business."""

    async def _obey(self) -> None:
        pass


@contextlib.asynccontextmanager
async def plugin(
    agent: Agent, title: str = "10-test", *, wait: bool = True, **script: Any
) -> AsyncIterator[Log]:
    """A plugin at a daemon's socket, in this process, once it is synchronized (``wait``); what it notes.

    ``script``: as plugin.py has it, actions by their call's name; ``__`` stands for the ``/`` before a name.
    """
    index, _, name = title.partition("-")
    log = Log(agent.folder / f"{title}.{len(list(agent.folder.glob('*.jsonl')))}.jsonl")
    running = PluginHere(_script(script), log.path)
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    end.connect(agent.config["nri"]["socket"])
    task = asyncio.ensure_future(running.run(name, index, end))
    try:
        if wait:
            await log.line("Synchronize")
        yield log
    finally:
        if running.connection is not None:
            running.connection.close("the test is over")
        await task
        running.close()


@contextlib.asynccontextmanager
async def plugin_process(agent: Agent, title: str, **script: Any) -> AsyncIterator[Plugin]:
    """The same as a process of its own."""
    where = Path(agent.config["nri"]["socket"])
    async with plugins.external(agent.folder, where, title, _script(script)) as running:
        yield running


def _script(script: dict[str, Any]) -> dict[str, Any]:
    told = {key: script[key] for key in ("mask", "unknown") if key in script}
    actions = {
        name.replace("__", "/"): action if isinstance(action, list) else [action]
        for name, action in script.items()
        if name not in told
    }
    return {"actions": actions, **told}


async def until_no_plugin(agent: Agent) -> None:
    """Return once the daemon has noticed that all have gone."""
    await until(agent, lambda status: status["nri"]["plugins"] == [])


def adjust(**what: Any) -> dict[str, Any]:
    """A CreateContainer's answer with an adjustment."""
    return {"reply": {"adjust": what}}


def env(**variables: str) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in variables.items()]


async def try_create(client: CriClient, pod: Pod, name: str, **config: Any) -> RawReply:
    """A create whose status is looked at."""
    request = create_request(pod, container_config(name, **config))
    return await client.call_bytes(CREATE, request.SerializeToString())


async def try_run(client: CriClient, name: str, uid: Optional[str] = None) -> RawReply:
    request = cri.RunPodSandboxRequest(config=pod_config(name, uid=uid or f"uid-{name}"))
    return await client.call_bytes(RUN, request.SerializeToString())


def only(runtime: FakeRuntime) -> ContainerRecord:
    """The one container there is."""
    [record] = runtime.containers.values()
    return record


def variables(record: ContainerRecord) -> dict[str, str]:
    return {pair.key: pair.value.decode() for pair in record.config.envs}
