"""Which claims of CPUs a container has: CDI names of a request, and what runtimes show of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cri_api import runtime_v1_pb2 as cri
from cri_api.claims import cdi_device, claim_key, part_name, variable
from cri_proxy.cri.claims import asked_claims, shown_claims
from cri_proxy.cri.messages import parse, read_create, write_create_delta
from policies.model import Placement
from tests.cri_client import Pod, container_config, create_request, pod_config

ONE, TWO = part_name("1111-aaaa", "cpus"), part_name("2222-bbbb", "group/large")
KEYS = (claim_key(ONE), claim_key(TWO))

ASKED: dict[str, tuple[list[str], dict[str, str], tuple[str, ...]]] = {
    "nothing": ([], {}, ()),
    "the field": ([cdi_device(TWO), cdi_device(ONE)], {}, KEYS),
    "one twice": ([cdi_device(ONE), cdi_device(ONE)], {"cdi.k8s.io/x": cdi_device(ONE)}, KEYS[:1]),
    "an annotation of several": ([], {"cdi.k8s.io/x": f"a/b=c,{cdi_device(ONE)},{cdi_device(TWO)}"}, KEYS),
    "both": ([cdi_device(ONE)], {"cdi.k8s.io/x": cdi_device(TWO)}, KEYS),
    "another's annotation": ([], {"cdi.example/x": cdi_device(ONE)}, ()),
    "others' devices": (["vendor.example/cpu=x", "cri-resmgr.io/cpu", "", "="], {"cdi.k8s.io/x": ""}, ()),
    "a name that is no part's": (["cri-resmgr.io/cpu=all", "cri-resmgr.io/cpus=a_b"], {}, ()),
}


@pytest.mark.parametrize(("devices", "annotations", "keys"), ASKED.values(), ids=ASKED)
def test_a_request_names_claims_by_their_cdi_devices(
    devices: list[str], annotations: dict[str, str], keys: tuple[str, ...]
) -> None:
    assert asked_claims(devices, annotations) == keys
    # A runtime that shows them shows the same.
    assert shown_claims(devices, annotations, ()) == keys


SHOWN: dict[str, tuple[list[str], list[str], tuple[str, ...]]] = {
    "the variables of both": ([], ["PATH=/bin", variable(ONE), variable(TWO)], KEYS),
    "no variable": ([], ["PATH=/bin", "CRI_RESMGR_CLAIM", "CRI_RESMGR_CLAIM_X", "=", ""], ()),
    "a value that is no part's": ([], ["CRI_RESMGR_CLAIM_X=a b", "CRI_RESMGR_CLAIM_Y="], ()),
    # A pod's author writes variables, and no CDI devices.
    "devices count more than variables": ([cdi_device(ONE)], [variable(TWO)], KEYS[:1]),
    "so do others' devices": (["vendor.example/disk=a"], [variable(TWO)], ()),
}


@pytest.mark.parametrize(("devices", "environment", "keys"), SHOWN.values(), ids=SHOWN)
def test_where_a_runtime_shows_no_devices_their_variables_tell(
    devices: list[str], environment: list[str], keys: tuple[str, ...]
) -> None:
    assert shown_claims(devices, {}, environment) == keys


def test_an_alternative_and_a_request_of_a_like_name_have_variables_of_their_own() -> None:
    parts = [part_name("1111-aaaa", request) for request in ("group/large", "group-large")]
    brought = [variable(part) for part in parts]
    assert shown_claims((), {}, brought) == tuple(sorted(claim_key(part) for part in parts))


def test_a_pods_own_variables_claim_nothing_in_a_request() -> None:
    name, _, value = variable(ONE).partition("=")
    assert read_create(requested(envs=((name, value),)), {}).container.claims == ()


def requested(**config: Any) -> bytes:
    pod = Pod("s1", "u1", "web", "default", pod_config("web", uid="u1", cgroup_parent="/kubepods/podu1"))
    return create_request(pod, container_config("main", **config)).SerializeToString()


def test_a_create_with_claims_is_one_of_a_container_that_has_them() -> None:
    read = read_create(requested(cdi=(cdi_device(TWO), "a.b/c=d", cdi_device(ONE))), {})
    assert read.container.claims == KEYS
    # Kubelet is asked where other vendors' devices are, and not where CPUs are.
    assert read.uses == (("resources", "a.b/c=d"),)


NAMES = st.lists(
    st.one_of(st.just(cdi_device(ONE)), st.text(max_size=20), st.from_regex(r"[a-z./]{1,9}=[a-z_]{1,9}")),
    max_size=4,
)


@given(names=NAMES, keys=st.dictionaries(st.sampled_from(["cdi.k8s.io/a", "cdi.k8s.io/b", "x"]), st.text()))
def test_whatever_names_a_request_has_they_pass_as_they_came(names: list[str], keys: dict[str, str]) -> None:
    asked = requested(cdi=tuple(names), annotations=keys, cpu_request=300, cpu_limit=1500)
    read = read_create(asked, {})
    assert (read.container.claims == KEYS[:1]) is (cdi_device(ONE) in names)
    delta = write_create_delta(Placement(cpus=frozenset([2, 3]), mems=frozenset([0])))
    before, after = (parse(cri.CreateContainerRequest, each) for each in (asked, asked + delta))
    assert [device.name for device in after.config.CDI_devices] == names
    linux = after.config.linux.resources
    assert (linux.cpuset_cpus, linux.cpuset_mems) == ("2-3", "0")
    # Shares and quota are kubelet's all the same.
    for resources in (before.config.linux.resources, linux):
        resources.cpuset_cpus = resources.cpuset_mems = ""
    assert before == after
