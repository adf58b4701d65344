"""What is known of pods and containers is what was told of them last, and its bytes say the same."""

from __future__ import annotations

from typing import Any, Optional

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cri_api import nri_v1alpha1_pb2 as nri
from cri_api import runtime_v1_pb2 as cri
from cri_proxy.nri.lifecycle import State
from cri_proxy.nri.pod_cache import PodCache
from cri_proxy.nri.view import view_again

IDS = st.sampled_from(["a", "b"])
STATES = st.sampled_from(list(State))
NUMBERS = {
    State.CREATED: nri.CONTAINER_CREATED,
    State.RUNNING: nri.CONTAINER_RUNNING,
    State.STOPPED: nri.CONTAINER_STOPPED,
}
#: Fields that no release of NRI has yet, in a container and in its resources.
UNKNOWN = b"\xfa\x3f\x03new"
TEXTS = st.text("äx", max_size=3)


def container(key: str, text: str) -> nri.Container:
    found = nri.Container.FromString(
        nri.Container(id=key, annotations={"a": text}).SerializeToString() + UNKNOWN
    )
    found.linux.resources.MergeFromString(UNKNOWN)
    return found


def resources(cpus: str, shares: int, pages: int) -> nri.LinuxResources:
    made = nri.LinuxResources(cpu=nri.LinuxCPU(cpus=cpus))
    made.cpu.shares.value = shares
    for page in range(pages):
        made.hugepage_limits.add(page_size=f"{page}", limit=shares)
    return made


RESOURCES = st.builds(resources, st.sampled_from(["", "0-3", "7"]), st.integers(0, 9), st.integers(0, 2))


class EveryChange(RuleBasedStateMachine):
    """The model is plain messages that are changed in the same way and encoded anew each time."""

    def __init__(self) -> None:
        super().__init__()
        self.pod_cache = PodCache()
        self.containers: dict[str, nri.Container] = {}
        self.pods: dict[str, nri.PodSandbox] = {}

    @rule(key=IDS, text=TEXTS)
    def remember(self, key: str, text: str) -> None:
        self.pod_cache.remember(container(key, text))
        self.containers[key] = container(key, text)

    @rule(key=IDS, text=TEXTS)
    def remember_pod(self, key: str, text: str) -> None:
        for_both = nri.PodSandbox(id=key, name=text).SerializeToString() + UNKNOWN
        self.pod_cache.remember_pod(nri.PodSandbox.FromString(for_both))
        self.pods[key] = nri.PodSandbox.FromString(for_both)

    @rule(key=IDS, state=st.integers(0, 3), pid=st.sampled_from([None, 0, 7]), code=st.integers(0, 2))
    def refresh(self, key: str, state: Any, pid: Optional[int], code: int) -> None:
        status = cri.ContainerStatus(id=key, state=state, exit_code=code, reason="x" * code)
        told = cri.ContainerStatusResponse(status=status)
        if pid is not None:
            told.info["info"] = f'{{"pid": {pid}}}'
        self.pod_cache.refresh(key, told)
        if key in self.containers:
            view_again(self.containers[key], told)

    @rule(key=IDS, state=STATES)
    def in_state(self, key: str, state: State) -> None:
        shown = self.pod_cache.in_state(key, state)
        assert (shown is None) == (key not in self.containers)
        if key in self.containers:
            self.containers[key].state = NUMBERS[state]

    @rule(key=IDS, asked=RESOURCES)
    def note_resources(self, key: str, asked: nri.LinuxResources) -> None:
        self.pod_cache.note_resources(key, asked)
        if key in self.containers:
            known = self.containers[key].linux.resources
            if asked.hugepage_limits:
                known.ClearField("hugepage_limits")
            known.MergeFrom(asked)

    @rule(key=IDS, overhead=RESOURCES, size=RESOURCES)
    def note_pod_size(self, key: str, overhead: nri.LinuxResources, size: nri.LinuxResources) -> None:
        self.pod_cache.note_pod_size(key, overhead, size)
        if key in self.pods:
            self.pods[key].linux.pod_overhead.CopyFrom(overhead)
            self.pods[key].linux.pod_resources.CopyFrom(size)

    @rule(key=IDS)
    def forget(self, key: str) -> None:
        self.pod_cache.forget(key)
        self.containers.pop(key, None)

    @rule(pods=st.sets(IDS), containers=st.sets(IDS))
    def keep(self, pods: set[str], containers: set[str]) -> None:
        self.pod_cache.keep(pods, containers)
        self.pods = {key: pod for key, pod in self.pods.items() if key in pods}
        self.containers = {key: one for key, one in self.containers.items() if key in containers}

    @invariant()
    def the_bytes_are_a_fresh_encoding(self) -> None:
        for shown, model in ((self.pod_cache.containers, self.containers), (self.pod_cache.pods, self.pods)):
            assert {key: one.data for key, one in shown.items()} == {
                key: one.SerializeToString() for key, one in model.items()
            }
            assert all(UNKNOWN in one.data for one in shown.values())


TestEveryChange = EveryChange.TestCase
TestEveryChange.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def running(key: str) -> cri.ContainerStatusResponse:
    return cri.ContainerStatusResponse(status=cri.ContainerStatus(id=key, state=cri.CONTAINER_RUNNING))


def test_who_runs_must_be_looked_at_once_for_its_process() -> None:
    pod_cache = PodCache()
    assert pod_cache.lacks("a", State.CREATED)
    pod_cache.remember(nri.Container(id="a", state=nri.CONTAINER_CREATED))
    pod_cache.refresh("b", running("b"))  # it is not in the cache
    assert [pod_cache.lacks("a", state) for state in State] == [False, True, False]
    assert pod_cache.lacks("b", State.RUNNING)
    pod_cache.refresh("a", running("a"))
    assert not pod_cache.lacks("a", State.RUNNING)
    pod_cache.forget("a")
    assert pod_cache.lacks("a", State.RUNNING)


def test_what_has_not_changed_is_not_encoded_again() -> None:
    pod_cache = PodCache()
    shown = pod_cache.remember(nri.Container(id="a", state=nri.CONTAINER_RUNNING))
    data = shown.data
    assert pod_cache.in_state("a", State.RUNNING) is shown and shown.data is data
    pod_cache.note_resources("b", resources("0", 1, 0))
    assert shown.data is data
    pod_cache.in_state("a", State.STOPPED)
    assert shown.data is not data
