"""The kernel's rules of cpufreq and cpuidle on files: what is written is taken, rounded, or refused as the kernel does.

Modelled after drivers/cpufreq/cpufreq.c, freq_table.c, acpi-cpufreq.c, intel_pstate.c, amd-pstate.c and
drivers/cpuidle/sysfs.c, and held against a kernel in a virtual machine (tests/vm/guest/clocks.py asks both the same):

1. Requests for a limit stay as they are asked; the limits in force are within the hardware's, the minimum never above the
   maximum (a request above it waits for a higher one), and of a table the next ones between.
2. Kernels before 5.4 refuse a minimum above the maximum: EINVAL.
3. A governor that is not there, and what is no number: EINVAL.
4. Where the driver has preferences and the governor is performance, another preference than performance: EBUSY. That
   governor has the preference performance, and the one before comes back with another governor.
5. A policy whose CPUs are all offline: EBUSY for what is read or written; its requests stay.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional, Union

import pytest

from cri_proxy import effects
from cri_proxy.bounded_files import read_text
from cri_proxy.isolation.clocks import PREFERENCES
from cri_proxy.isolation.io import clocks, originals, writer
from cri_proxy.isolation.io.originals import write_file
from policies.machine.cpus import format_cpus

PERFORMANCE = "performance"
TABLE = (1_200_000, 2_000_000, 2_500_000, 3_000_000)
STATES = ("POLL", "C1", "C2", "C3")
_KERNEL_GOVERNORS = ("conservative", "userspace", "powersave", "performance", "schedutil")
_ACTIVE_GOVERNORS = ("performance", "powersave")
#: Where the kernel has them.
CPU = Path("devices/system/cpu")


@dataclass
class PolicyModel:
    """One policy. ``low``, ``high``: what is asked; ``preference``: what is asked, None = the driver has none."""

    number: int
    cpus: frozenset[int]
    related: frozenset[int]
    table: tuple[int, ...] = TABLE
    least: int = TABLE[0]
    most: int = TABLE[-1]
    low: int = 0
    high: int = 1 << 31
    governor: str = "schedutil"
    governors: tuple[str, ...] = _KERNEL_GOVERNORS
    preference: Optional[str] = None
    more: Mapping[str, str] = field(default_factory=dict)

    @property
    def limits(self) -> tuple[int, int]:
        """Those in force (rule 1)."""
        high = min(max(self.high, self.least), self.most)
        low = min(max(self.low, self.least), high)
        if not self.table:
            return low, high
        if not any(low <= khz <= high for khz in self.table):
            high = min(khz for khz in self.table if khz > high)
        return min(khz for khz in self.table if khz >= low), max(khz for khz in self.table if khz <= high)


class CpufreqModel:
    """A tree of files below ``root`` (a sysfs), as one kernel has them.

    ``is_active``: a driver with preferences (intel_pstate, amd-pstate), and any frequency in its range. ``is_old``: before
    5.4. ``violations``: states that the rules say there cannot be.
    """

    def __init__(
        self,
        root: Path,
        policies: Iterable[frozenset[int]],
        is_active: bool = False,
        is_old: bool = False,
        more: Mapping[str, str] = {},
    ) -> None:
        self.root = root
        self.is_old = is_old
        self.policies = [
            PolicyModel(
                min(cpus),
                cpus,
                cpus,
                () if is_active else TABLE,
                governor="powersave" if is_active else "schedutil",
                governors=_ACTIVE_GOVERNORS if is_active else _KERNEL_GOVERNORS,
                preference="balance_performance" if is_active else None,
                more=dict(more),
            )
            for cpus in policies
        ]
        for policy in self.policies:
            policy.low, policy.high = policy.least, policy.most
        self.disabled: dict[tuple[int, int], int] = {
            (cpu, state): 0
            for policy in self.policies
            for cpu in policy.related
            for state in range(len(STATES))
        }
        self.violations: list[str] = []
        self.writes: list[str] = []
        self.render()

    # ------------------------------------------------------------------ the interface

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have the product's reads and writes below the root be this kernel's."""
        mine = f"{self.root / CPU}/"

        def write(path: str, text: str) -> None:
            effects.before(effects.SYSTEM, path)
            self.write(path, text) if path.startswith(mine) else write_file(path, text)

        def read(path: Union[str, Path]) -> str:
            if str(path).startswith(mine):
                self.read(str(path))
            return read_text(path)

        monkeypatch.setattr(originals, "write_file", write)
        for module in (originals, writer, clocks):
            monkeypatch.setattr(module, "read_text", read)

    def read(self, path: str) -> None:
        """:raises OSError: it cannot be read now (rule 5)."""
        policy = self._policy_of(path)
        if policy is not None and not policy.cpus:
            raise OSError(errno.EBUSY, "Device or resource busy", path)

    def write(self, path: str, text: str) -> None:
        """What a write does. :raises OSError: as the kernel."""
        parts = Path(path).relative_to(self.root / CPU).parts
        if not Path(path).exists():
            raise OSError(errno.ENOENT, "No such file or directory", path)
        self.writes.append(f"{'/'.join(parts[-2:])}={text.strip()}")
        self.read(path)
        policy = self._policy_of(path)
        if policy is not None:
            self._write_policy(policy, parts[2], text.strip())
        else:
            value = _number(text.strip())
            self.disabled[int(parts[0][3:]), int(parts[2][5:])] = int(value > 0)
            _say(Path(path), str(int(value > 0)))

    def set_online(self, online: frozenset[int]) -> None:
        """CPUs go and come."""
        for policy in self.policies:
            policy.cpus = policy.related & online
            self._render_policy(policy)

    def picture(self) -> object:
        """All that can be written, as it is."""
        return (
            [(each.number, each.limits, each.governor, each.preference) for each in self.policies],
            dict(self.disabled),
        )

    # ------------------------------------------------------------------ the rules

    def _policy_of(self, path: str) -> Optional[PolicyModel]:
        name = Path(path).parent.name
        return next((each for each in self.policies if f"policy{each.number}" == name), None)

    def _write_policy(self, policy: PolicyModel, name: str, text: str) -> None:
        low, high = policy.limits
        if name == "scaling_min_freq":
            number = _number(text)
            if self.is_old and max(number, policy.least) > high:
                raise OSError(errno.EINVAL, "Invalid argument")
            policy.low = number
        elif name == "scaling_max_freq":
            number = _number(text)
            if self.is_old and low > min(number, policy.most):
                raise OSError(errno.EINVAL, "Invalid argument")
            policy.high = number
        elif name == "scaling_governor":
            if text not in policy.governors:
                raise OSError(errno.EINVAL, "Invalid argument")
            policy.governor = text
        elif name == "energy_performance_preference" and policy.preference is not None:
            if text not in PREFERENCES:
                raise OSError(errno.EINVAL, "Invalid argument")
            if policy.governor == PERFORMANCE and text != PERFORMANCE:
                raise OSError(errno.EBUSY, "Device or resource busy")
            if policy.governor != PERFORMANCE:
                policy.preference = text
        else:
            raise OSError(errno.EACCES, "Permission denied")
        low, high = policy.limits
        if low > high:
            self.violations.append(f"policy{policy.number}: {low} above {high}")
        self._render_policy(policy)

    # ------------------------------------------------------------------ what files say

    def render(self) -> None:
        for policy in self.policies:
            self._render_policy(policy)
        for (cpu, number), value in self.disabled.items():
            folder = self.root / CPU / f"cpu{cpu}" / "cpuidle" / f"state{number}"
            _say(folder / "name", STATES[number])
            _say(folder / "disable", str(value))

    def _render_policy(self, policy: PolicyModel) -> None:
        folder = self.root / CPU / "cpufreq" / f"policy{policy.number}"
        for name, text in self._texts(policy).items():
            _say(folder / name, text)

    def _texts(self, policy: PolicyModel) -> dict[str, str]:
        low, high = policy.limits
        found = {
            "affected_cpus": _listed(policy.cpus),
            "related_cpus": _listed(policy.related),
            "cpuinfo_min_freq": str(policy.least),
            "cpuinfo_max_freq": str(policy.most),
            "scaling_min_freq": str(low),
            "scaling_max_freq": str(high),
            "scaling_governor": policy.governor,
            "scaling_available_governors": " ".join(policy.governors),
            **policy.more,
        }
        if policy.table:
            found["scaling_available_frequencies"] = " ".join(map(str, policy.table))
        if policy.preference is not None:
            is_performance = policy.governor == PERFORMANCE
            found["energy_performance_preference"] = PERFORMANCE if is_performance else policy.preference
            found["energy_performance_available_preferences"] = "default " + " ".join(PREFERENCES)
        return found


def _say(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def _listed(cpus: frozenset[int]) -> str:
    return " ".join(format_cpus(frozenset((cpu,))) for cpu in sorted(cpus))


def _number(text: str) -> int:
    if not text.isdecimal():
        raise OSError(errno.EINVAL, "Invalid argument")
    return int(text)
