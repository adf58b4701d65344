"""Values of options: what each kind takes, and the sentence with which it refuses."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cri_proxy.config.checks import CpuConstraint
from cri_proxy.config.options.table import BY_KEY
from tests.config.configs import (
    AVAILABLE,
    CACHE_PART,
    CPUS,
    DURATION,
    HTTP_URL,
    LISTEN,
    NAMES,
    RESERVED,
    SELECTORS,
    SOCKET,
    errors_of,
    value_of,
)


@pytest.mark.parametrize(
    ("key", "written", "value"),
    [
        ("policy.Active", "none", "none"),
        ("policy.Active", "topology-aware", "topology-aware"),
        ("placement.cpus", "exclusive", "exclusive"),
        ("placement.smt", "full-core", "full-core"),
        ("placement.prefer_isolated", "no", False),
        ("placement.move_exclusive", "True", True),
        ("placement.max_moves", "0", 0),
        ("placement.hints", "[mounts]", {"mounts"}),
        ("placement.hints", "devices", {"devices"}),
        ("placement.hints", "[]", set()),
        ("placement.ladder", "fine", "fine"),
        ("placement.unlimited", "ccx", "ccx"),
        ("placement.besteffort", "machine", "machine"),
        # YAML 1.1 reads off as false, and tools write it back as false.
        ("relay.mode", "off", "off"),
        ("relay.mode", '"off"', "off"),
        ("relay.mode", "false", "off"),
        ("placement.memory", "off", "off"),
        ("placement.memory_only_nodes", "2", {2}),
        ("placement.memory_only_nodes", "4,8-9", {4, 8, 9}),
        ("placement.memory_only_nodes", '""', set()),
        ("placement.reserved_namespaces", "[a, 'b-*']", ("a", "b-*")),
        ("placement.reserved_namespaces", "[]", ()),
        ("placement.reserved_namespaces", "one", ("one",)),
        # Names that YAML takes for something else.
        ("placement.unmanaged_namespaces", "[true, 007, 1.50, no]", ("true", "007", "1.50", "no")),
        ("affinity.cooldown", "300", 300.0),
        ("affinity.cooldown", '"300"', 300.0),
        ("affinity.cooldown", "0.5", 0.5),
        ("affinity.cooldown", "300s", 300.0),
        ("affinity.cooldown", "5m", 300.0),
        ("affinity.cooldown", "1h30m", 5400.0),
        ("affinity.cooldown", "250ms", 0.25),
        ("affinity.cooldown", "1.5s", 1.5),
        ("affinity.cooldown", "24h", 86400.0),
        ("relay.socket", "/run/x.sock", "/run/x.sock"),
        ("relay.extra_sockets", "[/run/a.sock, /run/b.sock]", ("/run/a.sock", "/run/b.sock")),
        ("relay.extra_sockets", "[]", ()),
        ("relay.runtime_endpoint", "unix:///run/crio/crio.sock", "/run/crio/crio.sock"),
        ("relay.runtime_endpoint", "unix:/run/crio/crio.sock", "/run/crio/crio.sock"),
        ("relay.runtime_endpoint", "/run/crio/crio.sock", "/run/crio/crio.sock"),
        ("relay.runtime_endpoint", '""', ""),
        ("topology.source", "/tmp/machine.json", "/tmp/machine.json"),
        ("isolation.batch", "qos/BestEffort", ("qos/BestEffort",)),
        ("isolation.batch", '["namespace/ci-*", balloon/slow]', ("namespace/ci-*", "balloon/slow")),
        ("isolation.protected", "[]", ()),
        ("isolation.batch_cache", "30%", "30%"),
        ("isolation.batch_cache", "2 bits", "2 bits"),
        ("isolation.batch_cache", "0x3", "0x3"),
        ("isolation.batch_bandwidth", "4000MBps", "4000MBps"),
        ("metrics.listen", "127.0.0.1:8891", "127.0.0.1:8891"),
        ("metrics.listen", "'[::1]:8891'", "[::1]:8891"),
        ("metrics.listen", "localhost:1", "localhost:1"),
        ("tracing.endpoint", "http://localhost:4318/v1/traces", "http://localhost:4318/v1/traces"),
        ("tracing.endpoint", "https://[fd00::1]/v1/traces", "https://[fd00::1]/v1/traces"),
        ("tracing.endpoint", '""', ""),
        (RESERVED, "750m", CpuConstraint(milli=750)),
        (RESERVED, "4", CpuConstraint(milli=4000)),
        (RESERVED, "1.5", CpuConstraint(milli=1500)),
        (RESERVED, "0", CpuConstraint()),
        (RESERVED, "cpuset:0-3", CpuConstraint(cpus=frozenset({0, 1, 2, 3}))),
        (RESERVED, '"cpuset:5"', CpuConstraint(cpus=frozenset({5}))),
        (RESERVED, "0-3,8", CpuConstraint(cpus=frozenset({0, 1, 2, 3, 8}))),
        (RESERVED, "0,8", CpuConstraint(cpus=frozenset({0, 8}))),
        (RESERVED, "exclude-cpuset:2-7", CpuConstraint(cpus=frozenset(range(2, 8)), all_but=True)),
        (RESERVED, "cgroup:/system.slice", CpuConstraint(cgroup="/system.slice")),
        (RESERVED, "cgroup:system.slice", CpuConstraint(cgroup="system.slice")),
        (RESERVED, "/system.slice", CpuConstraint(cgroup="/system.slice")),
        (AVAILABLE, "cpuset:1-15", CpuConstraint(cpus=frozenset(range(1, 16)))),
        (AVAILABLE, "8", CpuConstraint(milli=8000)),
        (AVAILABLE, '""', CpuConstraint()),
    ],
)
def test_a_value_is_read(key: str, written: str, value: Any) -> None:
    assert value_of(key, written) == value


@pytest.mark.parametrize(
    ("key", "written", "sentence"),
    [
        ("placement.ladder", "fien", '"fien", expected manual or fine'),
        ("placement.ladder", "[fine]", '["fine"], expected manual or fine'),
        ("placement.ladder", "{a: b}", "a mapping, expected manual or fine"),
        ("placement.unlimited", "node", '"node", expected ccx, numa, socket or machine'),
        ("policy.Active", "hygn", '"hygn", expected hygon, topology-aware, balloons or none'),
        ("placement.max_moves", "-1", '"-1", expected a whole number from 0 to 1000'),
        ("placement.max_moves", "1.5", '"1.5", expected a whole number from 0 to 1000'),
        ("placement.move_exclusive", "maybe", '"maybe", expected true or false'),
        (
            "placement.hints",
            "[disks]",
            '["disks"], expected a list of any of devices and mounts; [] for none',
        ),
        ("policy.balloons.BalloonTypes", "[a]", '["a"], expected a list of balloon types'),
        ("relay.mode", "no", '"no", expected enforce, observe or off'),
        ("log.level", "3", '"3", expected debug, info, warning or error'),
        ("log.level", "false", '"false", expected debug, info, warning or error'),
        ("affinity.cooldown", "-5", f'"-5", {DURATION}'),
        ("affinity.cooldown", "0", f'"0", {DURATION}'),
        ("affinity.cooldown", "0s", f'"0s", {DURATION}'),
        ("affinity.cooldown", ".nan", f'".nan", {DURATION}'),
        ("affinity.cooldown", "nan", f'"nan", {DURATION}'),
        ("affinity.cooldown", ".inf", f'".inf", {DURATION}'),
        ("affinity.cooldown", "true", f'"true", {DURATION}'),
        ("affinity.cooldown", "25h", f'"25h", {DURATION}'),
        ("affinity.cooldown", "24h1ms", f'"24h1ms", {DURATION}'),
        ("affinity.cooldown", "86401", f'"86401", {DURATION}'),
        ("affinity.cooldown", "1:30", f'"1:30", {DURATION}'),
        ("affinity.cooldown", "5 m", f'"5 m", {DURATION}'),
        ("affinity.cooldown", "30m1h", f'"30m1h", {DURATION}'),
        ("affinity.cooldown", "1d", f'"1d", {DURATION}'),
        ("affinity.cooldown", "1e3", f'"1e3", {DURATION}'),
        ("affinity.cooldown", '""', f'"", {DURATION}'),
        ("affinity.cooldown", "[5]", f'["5"], {DURATION}'),
        ("relay.socket", "cri.sock", f'"cri.sock", {SOCKET}'),
        ("relay.socket", '""', f'"", {SOCKET}'),
        ("relay.socket", '"/run/\\0.sock"', f'"/run/\\u0000.sock", {SOCKET}'),
        ("relay.socket", "/" + "s" * 107, f'"/{"s" * 56}...", {SOCKET} (it has 108 bytes)'),
        ("relay.socket", "/" + "é" * 54, f'"/{"é" * 54}", {SOCKET} (it has 109 bytes)'),
        (
            "relay.extra_sockets",
            "[/run/a.sock, b]",
            '["/run/a.sock", "b"], expected a list of absolute paths of at most 107 bytes each',
        ),
        (
            "relay.runtime_endpoint",
            "tcp://1.2.3.4:5",
            '"tcp://1.2.3.4:5", expected unix:///PATH or an absolute path of at most 107 bytes, '
            'or "" for the first found',
        ),
        (
            "relay.image_endpoint",
            "unix://images.sock",
            '"unix://images.sock", expected unix:///PATH or an absolute path of at most 107 bytes, '
            'or "" for the runtime\'s',
        ),
        ("isolation.batch", "ci-*", f'"ci-*", {SELECTORS}'),
        ("isolation.batch", "qos/Guarantied", f'"qos/Guarantied", {SELECTORS}'),
        (
            "isolation.protected",
            "[qos/Guaranteed, namespace/]",
            f'["qos/Guaranteed", "namespace/"], {SELECTORS} (\'namespace/\' is none)',
        ),
        ("isolation.batch_cache", "0%", f'"0%", {CACHE_PART}'),
        ("isolation.batch_cache", "0x0", f'"0x0", {CACHE_PART}'),
        (
            "isolation.batch_bandwidth",
            "2 bits",
            '"2 bits", expected a percentage ("30%") or a rate ("4000MBps")',
        ),
        ("state.directory", "lib", '"lib", expected an absolute path'),
        ("metrics.listen", '":8891"', f'":8891", {LISTEN}'),
        ("metrics.listen", "localhost:65536", f'"localhost:65536", {LISTEN}'),
        ("metrics.listen", "8891", f'"8891", {LISTEN}'),
        ("tracing.endpoint", "localhost:4317", f'"localhost:4317", {HTTP_URL}'),
        ("tracing.endpoint", "grpc://localhost:4317/", f'"grpc://localhost:4317/", {HTTP_URL}'),
        ("tracing.endpoint", "http://localhost:4318", f'"http://localhost:4318", {HTTP_URL}'),
        ("tracing.endpoint", "http://localhost:x/v1", f'"http://localhost:x/v1", {HTTP_URL}'),
        ("tracing.endpoint", "http://me:secret@host/v1", f'"http://me:secret@host/v1", {HTTP_URL}'),
        ("placement.reserved_namespaces", "[a, {b: c}]", f"a list that holds more than texts, {NAMES}"),
        ("placement.reserved_namespaces", "[a, ~]", f"a list with an empty item, {NAMES}"),
        ("placement.reserved_namespaces", "a, b", f'"a, b", {NAMES}'),
        ("placement.reserved_namespaces", '[a, b, c, d, "", f]', f'["a", "b", "c", "d", ...], {NAMES}'),
        (
            "placement.memory_only_nodes",
            "3-1",
            '"3-1", expected NUMA nodes such as 2 or 2-3,5, or "" for none '
            "('3-1' is not a CPU list: the range '3-1' runs backwards)",
        ),
        (RESERVED, "lots", f'"lots", {CPUS} none'),
        (RESERVED, "true", f'"true", {CPUS} none'),
        (RESERVED, "[1, 2]", f'["1", "2"], {CPUS} none'),
        (RESERVED, '"cpuset:"', f'"cpuset:", {CPUS} none (the cpuset names no CPU)'),
        (
            RESERVED,
            "0-3,x",
            f"\"0-3,x\", {CPUS} none ('0-3,x' is not a CPU list: 'x' is neither an id nor a range)",
        ),
        (RESERVED, "-1", f"\"-1\", {CPUS} none ('-1' is not a CPU list: '-1' is neither an id nor a range)"),
        (RESERVED, '"cgroup:"', f'"cgroup:", {CPUS} none (a cgroup\'s path is not empty and has no ..)'),
        (RESERVED, "/a/../b", f'"/a/../b", {CPUS} none (a cgroup\'s path is not empty and has no ..)'),
        (RESERVED, "1M", f'"1M", {CPUS} none (no machine has as many)'),
        (RESERVED, "0-65535," * 300, f'"{"0-65535," * 7}0...", {CPUS} none (it has 2400 characters)'),
        (AVAILABLE, "0", f'"0", {CPUS} all that are online (no CPU would be left)'),
    ],
)
def test_a_bad_value_is_refused_with_file_line_key_value_and_expectation(
    key: str, written: str, sentence: str
) -> None:
    assert errors_of(f"# settings\n{key}: {written}") == (f"c.yaml:2: {key} is {sentence}",)


@given(st.floats(min_value=1e-6, max_value=86400))
def test_durations_are_written_to_the_microsecond(seconds: float) -> None:
    check = BY_KEY["affinity.cooldown"].check
    assert check.read(check.write(seconds)) == pytest.approx(seconds, abs=1.1e-6)
    assert re.fullmatch(r"[0-9hms.]+", check.write(seconds))
