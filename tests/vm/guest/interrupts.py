"""Interrupts of virtio devices on a real kernel: they leave CPUs that a protected container owns, and come back."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

from cri_proxy.isolation.interrupts import read_interrupts
from policies.machine.cpus import format_cpus, parse_cpus, parse_mask
from tests.vm.guest.installation import CONFIG, SERVICE, SLOW_CONFIG, run, unit
from tests.vm.guest.node import Node, Running, until, until_served
from tests.vm.guest.placement import SMALL_MEMORY

_ON = "isolation:\n  interrupts: enforce\n"
_IRQ = Path("/proc/irq")


def _picture() -> dict[str, str]:
    """Of each interrupt that a device has, by number, where it may be handled; and where new ones may be."""
    names = read_interrupts(Path("/proc/interrupts").read_text())
    found = {}
    for number in names:
        file = _IRQ / str(number) / "smp_affinity_list"
        if file.exists():
            found[str(number)] = file.read_text().strip()
    found["default"] = format_cpus(parse_mask((_IRQ / "default_smp_affinity").read_text()))
    return found


def _managed(picture: dict[str, str]) -> set[str]:
    """Those that refuse the value that they have."""
    refusing = set()
    for number, value in picture.items():
        if number == "default":
            continue
        try:
            (_IRQ / number / "smp_affinity_list").write_text(value)
        except OSError as error:
            assert error.errno in (errno.EIO, errno.EPERM), error
            refusing.add(number)
    return refusing


async def _owner(node: Node) -> tuple[Running, frozenset[int]]:
    own = await node.run(
        "own", qos="guaranteed", cpu_limit=node.shape.threads * 1000, memory_limit=SMALL_MEMORY,
        annotations={"cri-resmgr.io/cpus": "exclusive"},
    )  # fmt: skip
    return own, parse_cpus(node.cpus(own))


async def _configured(node: Node, text: str) -> None:
    CONFIG.write_text(SLOW_CONFIG + text)
    run("systemctl", "reload-or-restart", SERVICE)
    await until_served(node.kubelet)


def _on(cpus: frozenset[int], managed: set[str]) -> dict[str, str]:
    """Interrupts that may be handled on these CPUs, but for those that the kernel manages."""
    picture = _picture().items()
    return {n: v for n, v in picture if n not in managed and not cpus.isdisjoint(parse_cpus(v))}


async def interrupts_leave_owned_cpus_and_come_back_over_kill_minus_nine(node: Node) -> None:
    before = _picture()
    managed = _managed(before)
    print(before, "managed:", managed)
    try:
        await _configured(node, _ON)
        own, cpus = await _owner(node)
        await until(lambda: _on(cpus, managed), lambda found: not found)
        # Those that the kernel manages are told once, and are no warning.
        told = node.ask("isolation")
        refused = {each["place"].split("/")[-2] for each in told["refusals"] if each["final"]}
        print("refused for good:", refused)
        assert refused <= managed
        assert [each for each in told["refusals"] if not each["final"]] == []
        assert {n: v for n, v in _picture().items() if n in managed} == {
            n: v for n, v in before.items() if n in managed
        }
        # Another program moves one back, while there is no daemon.
        pid = int(unit(SERVICE)["MainPID"])
        os.kill(pid, signal.SIGKILL)
        moved = next(n for n in before if n not in (*managed, "default"))
        (_IRQ / moved / "smp_affinity_list").write_text(format_cpus(cpus))
        await until_served(node.kubelet)
        await until(lambda: _on(cpus, managed), lambda found: not found)
        # The container ends: what was there before is there again.
        await node.remove(own.pod)
        await until(_picture, before.__eq__)
        own, cpus = await _owner(node)
        await until(lambda: _on(cpus, managed), lambda found: not found)
    finally:
        await _configured(node, "")
    await until(_picture, before.__eq__)
    await node.remove(own.pod)


async def a_sink_gathers_all_that_may_be_controlled(node: Node) -> None:
    before = _picture()
    managed = _managed(before)
    sink = node.shape.ccxs[0]
    try:
        await _configured(node, f'{_ON}control: {{interrupts: {{sink: "{sink}"}}}}\n')
        await until(lambda: {v for n, v in _picture().items() if n not in managed}, {sink}.__eq__)
    finally:
        await _configured(node, "")
    await until(_picture, before.__eq__)
