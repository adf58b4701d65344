"""What is to be done on a host: steps from the state it is in to the one it should be in. Pure; ``io/`` carries them out.

Installing, upgrading, taking back after a failure and uninstalling are one function, ``steps``, with other targets. It
never goes by what was done, only by what is there: so an installer that was killed anywhere can be followed by another.
The order keeps a node alive: kubelet leaves us before units and package go, and comes to us after both are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

PACKAGE = "cri-resmgr"
PROGRAM = "/usr/bin/cri-resmgr"
#: Intel's package, whose place ours takes: what was configured there cannot be given back by this installer.
INTELS = "cri-resource-manager"
#: Sockets first: calls wait behind them while the daemon starts.
UNITS = ("cri-resource-manager.socket", "cri-resource-manager.service")
#: What the package and its program make, and a removal leaves behind.
LEFTOVERS = ("/etc/cri-resmgr", "/var/lib/cri-resmgr")
#: Of the host, for root only: the record, and the package file that a failed upgrade goes back to.
FOLDER = "/var/lib/cri-resmgr-installer"
#: Seconds. A package is installed in 20 on a busy node; kubelet has 60 to come back, and release takes a while.
PACKAGE_S, UNITS_S, KUBELET_S, DOCTOR_S = 240.0, 120.0, 180.0, 60.0


class CannotInstall(Exception):
    """This node is not for this installer, and nothing was changed; the message says why and what to do."""


@dataclass(frozen=True)
class Package:
    """A package's file: ``kind`` deb or rpm, ``python`` as 3.11, ``version`` as the package manager names it."""

    kind: str
    python: str
    version: str
    name: str
    sha256: str

    @property
    def file(self) -> str:
        """Its name on the host: builds of one version do not take each other's place."""
        return f"{self.sha256[:12]}-{self.name}"


@dataclass(frozen=True)
class Platform:
    """What a host can take: the kind of its package manager ("" = none), its Pythons, the default one first."""

    kind: str
    pythons: tuple[str, ...]
    has_intels: bool = False


@dataclass(frozen=True)
class HostState:
    """How a host is. ``version`` "" = not installed; ``sha256`` "" = not from a file that the record knows.

    ``kubelet``: whether it points at us; None: our program there could not say. ``left``: those of LEFTOVERS that exist.
    """

    version: str = ""
    sha256: str = ""
    enabled: frozenset[str] = frozenset()
    running: frozenset[str] = frozenset()
    kubelet: Optional[bool] = False
    left: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Target:
    """How a host should be; without a package only what is in ``left`` of LEFTOVERS may stay."""

    package: Optional[Package] = None
    enabled: frozenset[str] = frozenset()
    running: frozenset[str] = frozenset()
    kubelet: bool = False
    left: frozenset[str] = frozenset()


@dataclass(frozen=True)
class InstallationStep:
    """One thing to do: a command on the host, or what is to be removed there. ``gives``: a file to be put there first."""

    name: str
    command: tuple[str, ...] = ()
    timeout_s: float = UNITS_S
    gives: Optional[Package] = None
    removes: tuple[str, ...] = ()


def choose(packages: Sequence[Package], platform: Platform) -> Package:
    """The one for this host: of its package manager, for its default Python or else the newest that it has.

    :raises CannotInstall: there is none.
    """
    if not platform.kind:
        raise CannotInstall("this node has neither dpkg nor rpm: cri-resmgr cannot be installed on it")
    of_kind = {package.python: package for package in packages if package.kind == platform.kind}
    for python in platform.pythons:
        if python in of_kind:
            return of_kind[python]
    found = ", ".join(platform.pythons) or "none"
    there = ", ".join(sorted(of_kind, key=_number)) or "none"
    raise CannotInstall(
        f"Python on this node: {found}; the {platform.kind} packages of this image are for: {there}"
    )


def _number(python: str) -> tuple[int, ...]:
    return tuple(int(part) for part in python.split(".") if part.isdigit())


def refuse_foreign(platform: Platform, now: HostState, known: Sequence[Package]) -> None:
    """What the installer could not give back it does not touch.

    :param known: the packages that its record names.
    :raises CannotInstall: ours or Intel's package was put there by another.
    """
    if platform.has_intels:
        raise CannotInstall(
            f"Intel's {INTELS} is installed on this node, and could not be given back: "
            "see docs/install.md, From Intel's cri-resource-manager"
        )
    if now.version and now.version not in {package.version for package in known}:
        had = f"where the installer had put {known[-1].version}" if known else "and not from this installer"
        raise CannotInstall(
            f"{PACKAGE} {now.version} is on this node, {had}: remove it there, or leave the node to its package manager"
        )
    if now.kubelet and not known:
        raise CannotInstall("kubelet points at cri-resmgr's socket already, and not by this installer")


def installed_target(package: Package, before: HostState) -> Target:
    """The package, its units, kubelet at its socket; what else was there before stays."""
    units = frozenset(UNITS)
    return Target(package, before.enabled | units, before.running | units, True, before.left)


def back_target(before: HostState) -> Target:
    """The host as it was before the first installation: without the package."""
    return Target(None, before.enabled, before.running, bool(before.kubelet), before.left)


def steps(kind: str, now: HostState, target: Target) -> tuple[InstallationStep, ...]:
    """What leads from one to the other; nothing if it is so already."""
    return (*_leave(now, target), *_package(kind, now, target), *_arrive(now, target))


def _leave(now: HostState, target: Target) -> tuple[InstallationStep, ...]:
    found = []
    # 1. Kubelet first, while the daemon still serves it; that gives the containers their CPUs back, too.
    if now.kubelet is not False and not target.kubelet and now.version:
        found.append(
            InstallationStep("kubelet back", (PROGRAM, "kubelet", "disable", "--restart"), KUBELET_S)
        )
    # 2. Then what would listen for it.
    if off := _units(now.running - target.running):
        found.append(InstallationStep("units stopped", ("systemctl", "stop", *off)))
    if off := _units(now.enabled - target.enabled):
        found.append(InstallationStep("units disabled", ("systemctl", "disable", *off)))
    return tuple(found)


def _package(kind: str, now: HostState, target: Target) -> tuple[InstallationStep, ...]:
    if target.package is not None:
        if now.version and now.sha256 == target.package.sha256:
            return ()
        file = f"{FOLDER}/{target.package.file}"
        install = {
            # There is no terminal on which dpkg could ask: what was edited stays.
            "deb": ("dpkg", "--force-confdef", "--force-confold", "--install", file),
            "rpm": ("rpm", "--upgrade", "--oldpackage", "--replacepkgs", file),
        }
        return (InstallationStep("package installed", install[kind], PACKAGE_S, gives=target.package),)
    found = []
    if now.version:
        # Without a purge dpkg would still know the configuration; rpm has none, and leaves what was edited.
        purge = kind == "deb" and not target.left
        # dpkg refuses to remove what it was killed in the middle of, unless it is told to.
        words = {
            "deb": ("dpkg", "--force-remove-reinstreq", "--purge" if purge else "--remove"),
            "rpm": ("rpm", "--erase"),
        }
        found.append(InstallationStep("package removed", (*words[kind], PACKAGE), PACKAGE_S))
    gone = tuple(path for path in LEFTOVERS if path in now.left | _made(now) and path not in target.left)
    if gone:
        found.append(InstallationStep("leftovers removed", removes=gone))
    return tuple(found)


def _made(now: HostState) -> frozenset[str]:
    """A package that goes may leave these, whether or not they were there when the host was looked at."""
    return frozenset(LEFTOVERS) if now.version else frozenset()


def _arrive(now: HostState, target: Target) -> tuple[InstallationStep, ...]:
    if target.package is None:
        return ()
    found = []
    if on := _units(target.enabled - now.enabled):
        found.append(InstallationStep("units enabled", ("systemctl", "enable", *on)))
    if on := _units(target.running - now.running):
        found.append(InstallationStep("units started", ("systemctl", "start", *on)))
    if target.kubelet and not now.kubelet:
        found.append(
            InstallationStep("kubelet switched", (PROGRAM, "kubelet", "enable", "--restart"), KUBELET_S)
        )
    return tuple(found)


def _units(units: frozenset[str]) -> tuple[str, ...]:
    """In the order in which they are named."""
    return tuple(unit for unit in UNITS if unit in units)
