"""Which of a container's devices and mounts are asked about, and what is known of them by their PCI address."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Optional

import pytest

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.cri.device_hints import counted, hints_by_address, pci_address, read_uses
from cri_proxy.cri.messages import read_create
from policies.model import Hint, PlacementPreferences
from policies.settings import PlacementSettings
from tests.scenes import make_container

PODS = "/var/lib/kubelet/pods/7a1b"


def mount(host: str, inside: str = "/data", readonly: bool = False) -> cri.Mount:
    return cri.Mount(host_path=host, container_path=inside, readonly=readonly)


MOUNTS = [
    ("a folder of the host", mount("/mnt/fast"), True),
    ("a volume", mount(f"{PODS}/volumes/kubernetes.io~csi/pvc-1/mount"), True),
    ("a local volume", mount(f"{PODS}/volumes/kubernetes.io~local-volume/fast"), True),
    ("it is only read", mount("/mnt/fast", readonly=True), False),
    ("the service account", mount(f"{PODS}/volumes/kubernetes.io~projected/kube-api-access-x"), False),
    ("a config map", mount(f"{PODS}/volumes/kubernetes.io~configmap/c"), False),
    ("a secret", mount(f"{PODS}/volumes/kubernetes.io~secret/s"), False),
    ("scratch space on kubelet's own disk", mount(f"{PODS}/volumes/kubernetes.io~empty-dir/tmp"), False),
    ("another root of kubelet's", mount("/data/kubelet/pods/7a1b/volumes/kubernetes.io~secret/s"), False),
    ("kubelet's hosts file", mount(f"{PODS}/etc-hosts", "/etc/hosts"), False),
    ("the message of the end", mount(f"{PODS}/containers/app/0a", "/dev/termination-log"), False),
    ("a file in /etc", mount("/mnt/conf", "/etc/app.conf"), False),
    ("not in /etc", mount("/mnt/conf", "/etcetera"), True),
    ("libraries of the host", mount("/usr/lib/x", "/usr/lib/x"), False),
    ("all of the host", mount("/", "/host"), False),
    ("an image volume", mount(""), False),
]


@pytest.mark.parametrize(
    ("mounted", "asked"), [case[1:] for case in MOUNTS], ids=[case[0] for case in MOUNTS]
)
def test_mounts_that_say_where_data_is(mounted: cri.Mount, asked: bool) -> None:
    uses = read_uses(cri.ContainerConfig(mounts=[mounted]))
    assert uses == ((("mounts", mounted.host_path),) if asked else ())


def test_devices_come_first_and_each_thing_once() -> None:
    config = cri.ContainerConfig(
        devices=[cri.Device(host_path=path) for path in ("/dev/a", "/dev/b", "/dev/a", "")],
        mounts=[mount("/m"), mount("/m", "/other")],
        CDI_devices=[cri.CDIDevice(name="vendor.com/net=one")],
    )
    assert read_uses(config) == (
        *(("devices", "/dev/a"), ("devices", "/dev/b")),
        *(("mounts", "/m"), ("resources", "vendor.com/net=one")),
    )


def test_a_create_tells_what_it_uses() -> None:
    request = cri.CreateContainerRequest(
        pod_sandbox_id="s",
        config=cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name="app"), devices=[cri.Device(host_path="/dev/a")]
        ),
        sandbox_config=cri.PodSandboxConfig(metadata=cri.PodSandboxMetadata(name="p", uid="u")),
    )
    assert read_create(request.SerializeToString(), {}).uses == (("devices", "/dev/a"),)


DEVICE, MOUNT = ("devices", "/dev/a"), ("mounts", "/mnt/fast")
GIVEN = ("resources", "vendor.com/net=one")
COUNTED: list[tuple[str, dict[str, Any], tuple[str, ...], tuple[Any, ...]]] = [
    # name, wishes, kinds configured, what counts
    ("all", {}, ("devices", "mounts"), (DEVICE, MOUNT, GIVEN)),
    ("devices only, of which a resource is one", {}, ("devices",), (DEVICE, GIVEN)),
    ("no devices", {"hints_deny": ("devices",)}, ("devices", "mounts"), (MOUNT,)),
    ("one resource denied", {"hints_deny": ("vendor.com/*",)}, ("devices",), (DEVICE,)),
    ("nothing", {}, (), ()),
    ("its wish goes first", {"hints": frozenset(["mounts"])}, ("devices",), (MOUNT,)),
    ("denied", {"hints_deny": ("/mnt/*",)}, ("devices", "mounts"), (DEVICE, GIVEN)),
    ("allowed, where nothing else is", {"hints_allow": ("/mnt/*",)}, (), (MOUNT,)),
]


@pytest.mark.parametrize(
    ("preferences", "kinds", "uses"), [case[1:] for case in COUNTED], ids=[case[0] for case in COUNTED]
)
def test_only_what_counts_is_asked_about(
    preferences: dict[str, Any], kinds: tuple[str, ...], uses: tuple[Any, ...]
) -> None:
    container = replace(make_container(), preferences=PlacementPreferences(**preferences))
    settings = PlacementSettings(hints=frozenset(kinds))
    assert counted((DEVICE, MOUNT, GIVEN), container, settings) == uses


ADDRESSES = [
    ("0000:41:00.0", "0000:41:00.0"),
    ("0000:C1:1F.7", "0000:c1:1f.7"),
    ("/sys/bus/pci/devices/0000:41:00.0", "0000:41:00.0"),
    ("/sys/devices/pci0000:40/0000:40:01.1/0000:41:00.0", "0000:41:00.0"),
    ("/dev/dri/by-path/pci-0000:41:00.0-render", "0000:41:00.0"),
    ("10000:e1:00.0", "10000:e1:00.0"),
    ("/dev/dri/card0", None),
    ("/mnt/10:20:30.1", None),
    ("0000:41:20.0", None),
    ("f0000:41:00.0a", None),
    ("", None),
]


@pytest.mark.parametrize(("path", "address"), ADDRESSES)
def test_the_pci_address_in_a_path(path: str, address: Optional[str]) -> None:
    assert pci_address(path) == address


def test_a_device_named_by_its_address_is_near_its_node() -> None:
    uses = [
        ("devices", "0000:41:00.0"),
        ("mounts", "/by-path/pci-0000:01:00.0"),
        ("devices", "/dev/a"),
        ("devices", "0000:99:00.0"),
    ]
    assert hints_by_address(uses, {"0000:41:00.0": 3, "0000:01:00.0": 0}) == (
        Hint("devices", "0000:41:00.0", frozenset([3])),
        Hint("mounts", "/by-path/pci-0000:01:00.0", frozenset([0])),
    )
