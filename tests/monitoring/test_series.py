"""Every query of the dashboard has series, every alert what it is about: a real Prometheus scrapes a real daemon."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from cri_proxy.daemon.metrics_documents import metrics_markdown
from cri_proxy.metrics import FAILED_OPEN
from tests.agent import Agent
from tests.cri_client import CriClient
from tests.fake_runtime import FakeRuntime
from tests.functional.conftest import CREATE, ask, create_exclusive, resync, run_guaranteed, until
from tests.functional.support import new_agent, run_pod_with, start
from tests.monitoring.prometheus import DASHBOARD, REPOSITORY, free_port, programs, rules, running_prometheus
from tests.observer import QUICK, ObserverProcess

#: What is not known without an observer has no series.
OF_THE_OBSERVER = re.compile("cri_resmgr_affinity_edges|cri_resmgr_observer_count")


def queries() -> Iterator[tuple[str, str]]:
    """Each query of the dashboard as Grafana asks it: (panel, query)."""
    document = json.loads(DASHBOARD.read_text())
    for panel in document["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], filled(target["expr"])
    for variable in document["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"])
            assert found is not None
            yield variable["name"], f"count by ({found[2]}) ({filled(found[1])})"


def filled(query: str) -> str:
    for name, value in (("$job", "cri-resmgr"), ("$instance", ".*"), ("$__rate_interval", "30s")):
        query = query.replace(name, value)
    assert "$" not in query
    return query


def test_the_dashboard_and_the_page_know_the_same_metrics() -> None:
    page = metrics_markdown()
    for title, query in queries():
        named = set(re.findall(r"\b(?:cri_resmgr|kubelet)_\w+", query))
        assert named or "up{" in query, title
        assert {name for name in named if f"`{name.removesuffix('_bucket')}`" not in page} == set(), title


def test_panels_are_told_apart_and_explained() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["description"] for panel in panels if panel["type"] != "row")


def test_every_reason_to_fail_open_is_counted_from_the_start() -> None:
    sources = [path.read_text() for path in (REPOSITORY / "cri_proxy").rglob("*.py")]
    calls = r'(?:_fail_open|FailedOpen|\.failed_open)\([^)"]*"([^"]+)"'
    said = {reason for text in sources for reason in re.findall(calls, text) if reason}
    assert {"too large", "slow state"} <= said <= set(FAILED_OPEN)


async def test_every_query_has_series_and_every_alert_what_it_is_about(
    runtime: FakeRuntime, tmp_path: Path
) -> None:
    programs()
    address = f"127.0.0.1:{free_port()}"
    async with new_agent(runtime, metrics={"listen": address}) as agent:
        await start(agent)
        async with running_prometheus(tmp_path, address) as prometheus:
            async with CriClient(agent.socket) as client:
                # 1. All is well.
                _, web = await run_pod_with(client, "web", cpu_limit=8000)
                await prometheus.scraped()
                await run_pod_with(client, "more", cpu_limit=8000)
                await prometheus.scraped()
                for title, query in queries():
                    if not OF_THE_OBSERVER.search(query):
                        assert await prometheus.until(query), title
                await prometheus.scraped()
                for name, rule in rules().items():
                    assert await prometheus.ask(rule["expr"]) == [], name
                [aligned] = await prometheus.ask(
                    'kubelet_container_aligned_compute_resources_count{boundary="uncore_cache",scope="container"}'
                )
                assert aligned["value"][1] == "2"
                # 2. Nothing is.
                await _break(agent, client, runtime, web)
            await prometheus.scraped()
            about = rules()
            for name in about.keys() - {"CriResmgrDown", "CriResmgrNowhere"}:
                assert await prometheus.until(about[name]["expr"]), name
            await agent.kill()
            assert await prometheus.until(about["CriResmgrDown"]["expr"])
            # Before there was anything to scrape.
            assert await prometheus.ask(about["CriResmgrNowhere"]["expr"], time.time() - 3600)


async def test_the_observers_series_are_there_with_it_and_end_with_it(
    runtime: FakeRuntime, tmp_path: Path
) -> None:
    programs()
    address = f"127.0.0.1:{free_port()}"
    asked = [query for _, query in queries() if OF_THE_OBSERVER.search(query)]
    assert asked
    async with new_agent(runtime, metrics={"listen": address}, constants=QUICK) as agent:
        await start(agent)
        async with (
            running_prometheus(tmp_path, address) as prometheus,
            ObserverProcess(agent, []) as observer,
        ):
            for query in asked:
                assert await prometheus.until(query)
            await observer.end(signal.SIGKILL)
            await until(agent, lambda document: bool(document["observer"]["problem"]), "affinity")
            await prometheus.scraped()
            for query in asked:
                assert await prometheus.ask(query) == []


async def _break(agent: Agent, client: CriClient, runtime: FakeRuntime, web: str) -> None:
    """Have everything happen that an alert is about, the last that nothing is placed."""
    # Another writer of cpusets that does not give up, and one that does.
    own = runtime.cpuset(web)
    for _ in range(3):
        runtime.set_cpuset(web, "100-103")
        await resync(agent, runtime)
        await runtime.wait_until(lambda: runtime.cpuset(web) == own)
    _, other = await run_pod_with(client, "other", cpu_limit=8000)
    kept = runtime.cpuset(other)
    runtime.set_cpuset(other, "100-103")
    await resync(agent, runtime)
    await runtime.wait_until(lambda: runtime.cpuset(other) == kept)
    runtime.set_cpuset(web, "100-103")
    for _ in range(3):
        status = await resync(agent, runtime)
    assert status["foreign"] == ["default/web/web"]
    # A start that fails where it was placed, and a request that cannot be read.
    pod = await client.run_pod("bad")
    container_id = await client.create(pod, "bad", cpu_limit=2000)
    error = (grpc.StatusCode.UNKNOWN, "runc: write cpuset.cpus: invalid argument")
    runtime.script("StartContainer", error=error, times=1)
    with pytest.raises(grpc.aio.AioRpcError):
        await client.start(container_id)
    await client.call_bytes(CREATE, b"\xff\xff")
    # A runtime that takes no cpusets, and one that does not say what became of a create.
    runtime.script("UpdateContainerResources", error=(grpc.StatusCode.UNKNOWN, "no"))
    db = await run_guaranteed(client, "db")
    await create_exclusive(client, db, "db", kept.split(",")[0].split("-")[0])
    await until(agent, lambda status: "cri_resmgr_updates_total{result=failed}" in status["counters"])
    pod = await client.run_pod("lost")
    before = len(runtime.calls_of("CreateContainer"))
    runtime.script("CreateContainer", then_hang=True, times=1)
    creating = asyncio.ensure_future(client.create(pod, "lost", cpu_limit=2000))
    await runtime.wait_for_call("CreateContainer", before + 1)
    creating.cancel()
    await until(agent, lambda status: status["in_doubt"] == 1)
    # A state that cannot be written.
    agent.state.rename(agent.folder / "elsewhere")
    agent.state.write_text("in the way")
    await client.run_pod("unsaved")
    await run_pod_with(client, "unsaved-too", cpu_limit=2000)
    await until(agent, lambda status: status["state_unsaved"] > 0 and bool(status["degraded"]))
    await ask(agent, "mode", mode="observe")
