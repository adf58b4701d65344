"""``release`` gives containers the CPUs they would have without us, for good, with the daemon up or down."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cri_client import CPU_PERIOD_US
from tests.e2e.node import GIB, Node

pytestmark = pytest.mark.containerd

SMALL = {"cpu_request": 100, "cpu_limit": 1000}
state = pytest.mark.parametrize("up", [True, False], ids=["daemon up", "daemon down"])


async def test_without_us_is_elsewhere(node: Node) -> None:
    """Else the tests below would show nothing."""
    without_us = await node.run("without-us", by=node.direct)
    assert await node.cpus(without_us) != await node.cpus(await node.run("p", cpu_limit=1000))


@state
async def test_every_container_is_where_it_would_be_without_us(node: Node, up: bool) -> None:
    kinds: dict[str, dict[str, Any]] = {
        "limited": {"cpu_limit": 1000},
        "memory": {"cpu_limit": 1000, "memory_limit": GIB // 8},
        "unlimited": {"cpu_request": 100},
        "besteffort": {"qos": "besteffort"},
        "fenced": {"cpu_request": 100, "cpuset": "1", "mems": "0"},
        "wide-fence": {"cpu_limit": 1000, "cpuset": "0-1"},
    }
    ours = [await node.run(name, **kind) for name, kind in kinds.items()]
    await release(node, up)
    others = [await node.run(f"{name}-direct", by=node.direct, **kind) for name, kind in kinds.items()]
    places = dict(zip(kinds, [await node.place(container) for container in ours]))
    assert places == dict(zip(kinds, [await node.place(container) for container in others]))


@state
async def test_it_stays_there_and_the_next_one_is_placed(node: Node, up: bool) -> None:
    released = await node.run("p", **SMALL)
    await release(node, up)
    free = await node.place(released)
    # A resize, a comparison with the runtime, a restart: nobody takes it back.
    if not up:
        await node.agent.start()
    await node.kubelet.update(released.id, cpu_period=CPU_PERIOD_US, cpu_quota=CPU_PERIOD_US // 2)
    await restart_with_resync(node)
    assert await node.place(released) == free
    assert (await node.row(released))["stance"] == "released"
    assert await node.cpus(await node.run("q", **SMALL)) in ("0", "1")


@state
async def test_one_container_alone(node: Node, up: bool) -> None:
    released = await node.run("p", cpu_limit=1000)
    kept = await node.run("q", cpu_limit=1000)
    await release(node, up, "default/p/main")
    without_us = await node.run("without-us", by=node.direct)
    assert await node.cpus(released) == await node.cpus(without_us)
    assert await node.cpus(kept) == "1"


async def test_a_name_that_nobody_has_is_one_sentence(node: Node) -> None:
    await node.agent.kill()
    code, out, problem = await node.agent.cli(
        "release", "nobody", "--config", str(node.agent.config_file), "--json"
    )
    assert (code, out) == (1, "")
    assert "no container 'nobody' is known" in problem


@pytest.mark.parametrize("damage", ["lost", "corrupt"])
async def test_it_needs_no_state(node: Node, damage: str) -> None:
    made = await node.run("p", cpu_limit=1000)
    await node.agent.kill()
    for file in node.agent.state.glob("state.db*"):
        if damage == "lost":
            file.unlink()
        else:
            file.write_bytes(b"rubbish" * 1000)
    await release(node, up=False)
    assert await node.cpus(made) == await node.cpus(await node.run("without-us", by=node.direct))


async def test_a_runtime_that_is_away_is_one_sentence(node: Node) -> None:
    await node.agent.kill()
    node.agent.write_config({"relay": {"runtime_endpoint": str(node.agent.folder / "nobody.sock")}})
    code, out, problem = await node.agent.cli("release", "--all", "--config", str(node.agent.config_file))
    assert (code, out) == (1, "")
    assert "the runtime does not answer" in problem and "Traceback" not in problem


async def test_adopt_takes_a_released_container_back(node: Node) -> None:
    made = await node.run("p", cpu_limit=1000)
    await release(node, up=True)
    code, _, problem = await node.agent.cli("adopt", "default/p/main")
    assert (code, problem) == (0, "")
    assert await node.cpus(made) == "0"


async def release(node: Node, up: bool, who: str = "") -> None:
    """One container, or all."""
    if up:
        done = await node.ask("release", container=who, all=not who)
        assert all(update["done"] for update in done["updates"])
        return
    await node.agent.kill()
    words = ["release", who or "--all", "--config", str(node.agent.config_file)]
    code, out, problem = await node.agent.cli(*words)
    assert code == 0, out + problem


async def restart_with_resync(node: Node) -> None:
    await node.agent.terminate()
    await node.agent.start()
    await node.until_runtime_is_known()
