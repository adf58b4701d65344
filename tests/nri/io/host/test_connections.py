"""Plugins connect, are configured, learn of everything; what is none is refused with the reason."""

from __future__ import annotations

import asyncio
import os
import socket
import stat

import pytest

from tests.nri.io.host.hosting import CONTAINER, OTHER, POD, FakeWorld, hosting, shares
from tests.nri.io.host.plugins import HANG_S, eventually, external


async def test_a_plugin_is_configured_synchronized_and_then_there(tmp_path) -> None:
    timeouts = {"registration_timeout_s": 5.0, "request_timeout_s": 2.0}
    async with hosting(tmp_path, **timeouts) as it, it.external("10-foo") as plugin:
        await it.has("10-foo")
        configured = await plugin.log.line("Configure")
        assert configured["message"] == {
            "runtime_name": "containerd",
            "runtime_version": "1.6.20",
            "registration_timeout": "5000",
            "request_timeout": "2000",
            "NRI_version": "v0.12.2",
        }
        synchronized = await plugin.log.line("Synchronize")
        assert [pod["id"] for pod in synchronized["message"]["pods"]] == [POD.id]
        assert [one["id"] for one in synchronized["message"]["containers"]] == [OTHER.id]
        names = [line["event"] for line in plugin.log.lines()]
        assert [n for n in names if n != "RegisterPlugin answered"] == ["started", "Configure", "Synchronize"]
        (shown,) = it.host.plugins()
        assert (shown["origin"], shown["pid"], shown["nri_version"]) == ("external", plugin.pid, "v0.12.2")
        assert it.host.connected


async def test_other_timeouts_are_told(tmp_path) -> None:
    timeouts = {"registration_timeout_s": 7.0, "request_timeout_s": 2.5}
    async with hosting(tmp_path, **timeouts) as it, it.external("10-foo") as plugin:
        message = (await plugin.log.line("Configure"))["message"]
        assert (message["registration_timeout"], message["request_timeout"]) == ("7000", "2500")


async def test_without_a_socket_no_plugin_can_connect(tmp_path) -> None:
    async with hosting(tmp_path, socket="") as it:
        assert not it.socket.exists()
        assert not it.host.connected
        assert it.host.problems == []


async def test_the_socket_is_roots_alone_in_a_directory_of_its_own(tmp_path) -> None:
    before = os.umask(0)
    try:
        async with hosting(tmp_path) as it:
            assert stat.S_IMODE(it.socket.stat().st_mode) == 0o600
            assert stat.S_IMODE(it.socket.parent.stat().st_mode) == 0o700
    finally:
        os.umask(before)
    assert not it.socket.exists()


async def test_a_socket_that_nobody_serves_is_replaced_and_one_that_is_served_is_not(tmp_path) -> None:
    async with hosting(tmp_path) as first:
        async with hosting(tmp_path) as second:
            (problem,) = second.host.problems
            assert "is served by another process" in problem
        assert first.socket.exists()
        async with external(tmp_path, first.socket, "10-foo"):
            await first.has("10-foo")
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(first.socket))
    async with hosting(tmp_path) as third, external(tmp_path, third.socket, "10-foo"):
        await third.has("10-foo")


REFUSED = {
    "a comma in the name": (
        "10-foo,bar",
        "invalid plugin name: invalid plugin name \"foo,bar\": contains invalid character ','",
    ),
    "one digit": ("5-foo", 'invalid plugin index: invalid plugin index "5", must be 2 digits'),
    "no digits": ("xy-foo", 'invalid plugin index: invalid plugin index "xy" (not [0-9][0-9])'),
    "no name": ("10-", "invalid (empty) plugin name"),
}


async def test_refused_in_nris_own_words_and_closed_are(it, tmp_path) -> None:
    async def refused(title: str, words: str) -> None:
        async with external(tmp_path / title.replace(",", "."), it.socket, title, wait=False) as plugin:
            answered = await plugin.log.line("RegisterPlugin answered")
            assert (answered["error"], answered["code"]) == (words, 2)
            await plugin.log.line("closed")

    for title, _ in REFUSED.values():
        (tmp_path / title.replace(",", ".")).mkdir()
    await asyncio.gather(*(refused(*case) for case in REFUSED.values()))
    assert it.titles() == []


async def test_odd_but_legal_names_and_the_same_name_twice_are_taken(it, tmp_path) -> None:
    async with it.external("00-Foo_bar.baz+1-x"), it.external("10-foo"), it.external("10-foo"):
        await it.has("00-Foo_bar.baz+1-x", "10-foo", "10-foo")


async def test_who_does_not_register_is_closed_and_keeps_nobody_waiting(it, tmp_path) -> None:
    silent = {"registers": False}
    async with it.external("10-mute", silent, wait=False) as mute:
        await mute.log.line("started")
        async with it.external("20-foo"):
            await it.has("20-foo")
    it.set(registration_timeout_s=0.3)
    async with it.external("11-mute", silent, wait=False) as mute:
        await mute.log.line("closed")
    assert any("it has not registered within 0.3 s" in warning for warning in it.warnings())


async def test_garbage_is_closed_and_hurts_nobody(it) -> None:
    async with it.external("10-foo"):
        await it.has("10-foo")
        for garbage in (
            b"GET / HTTP/1.1\r\n\r\n",
            os.urandom(64),
            b"\0\0\0\2\0\0\0\x0a\0\0\0\0\0\0\0\1\x09\0",
        ):
            reader, writer = await asyncio.open_unix_connection(str(it.socket))
            writer.write(garbage)
            assert await asyncio.wait_for(reader.read(), HANG_S) == b""
            writer.close()
            await writer.wait_closed()
        assert it.titles() == ["10-foo"]


async def test_unknown_events_are_left_out_with_a_warning_and_nothing_asked_is_everything(it) -> None:
    async with it.external("10-new", {"mask": 0x4008}), it.external("20-all", {"mask": 0}):
        await it.has("10-new", "20-all")
        events = [shown["events"] for shown in it.host.plugins()]
        assert events[0] == ["CreateContainer"]
        assert len(events[1]) == 14
        assert [(e["plugin"], e["bits"]) for e in it.log.entries if "bits" in e] == [("10-new", "0x4000")]


async def test_unasked_updates_before_the_start_are_an_error_and_after_it_reach_the_runtime(tmp_path) -> None:
    pod_view = FakeWorld()
    pod_view.failing = {"c9"}
    go = tmp_path / "go"
    script = {"actions": {"Synchronize": [{"until": str(go)}]}}
    async with hosting(tmp_path, pod_view) as it, it.external("10-foo", script) as plugin:
        plugin.order("UpdateContainers", update=[shares("c2", 100)])
        early = await plugin.log.line("UpdateContainers answered")
        assert early["error"] == "the plugin has not been started yet: it is not synchronized"
        assert pod_view.applied == []
        go.touch()
        await it.has("10-foo")
        plugin.order("UpdateContainers", update=[shares("c2", 100), shares("c9", 200)])
        assert (await plugin.log.line("UpdateContainers answered", 2))["failed"] == ["c9"]
        ((who, updates),) = pod_view.applied
        assert (who, [(u.container_id, u.linux.resources.cpu.shares.value) for u in updates]) == (
            "10-foo",
            [("c2", 100), ("c9", 200)],
        )


async def test_a_plugin_that_goes_is_forgotten_and_may_come_again(it) -> None:
    async with it.external("10-foo"), it.external("20-bar") as bar:
        await it.has("10-foo", "20-bar")
        await bar.kill()
        await it.has("10-foo")
        async with it.external("20-bar"):
            await it.has("10-foo", "20-bar")


async def test_changes_are_told(it) -> None:
    told: list[list[str]] = []
    it.host.on_change = lambda: told.append(it.titles())
    async with it.external("10-foo"):
        await eventually(lambda: told == [["10-foo"]], lambda: f"told {told}")
    await eventually(lambda: told == [["10-foo"], []], lambda: f"told {told}")


async def test_the_end_is_told_by_shutdown(it) -> None:
    async with it.external("10-foo") as plugin:
        await it.has("10-foo")
        await it.host.close()
        await plugin.log.line("Shutdown")
        await plugin.log.line("closed")
        await plugin.wait()
        await it.host.run_pod(POD)  # no plugin is connected any more to refuse it
        assert (await it.host.create(POD, CONTAINER)).updates == []


async def test_what_a_plugin_takes_part_in_is_counted(it) -> None:
    script = {"actions": {"RunPodSandbox": [{"error": "no"}]}}
    async with it.external("10-foo", script):
        await it.has("10-foo")
        await it.host.create(POD, CONTAINER)
        with pytest.raises(Exception, match="no"):
            await it.host.run_pod(POD)
        (shown,) = it.host.plugins()
        assert shown["calls"] >= 4 and shown["failures"] == {"error": 1}
        assert shown["last_error"] == "RunPodSandbox: no"
        assert shown["most_ms"] >= shown["mean_ms"] > 0
        text = it.metrics.text()
        assert 'cri_resmgr_nri_calls_total{event="RunPodSandbox",plugin="10-foo",result="error"} 1.0' in text
        assert "cri_resmgr_nri_plugins 1.0" in text
