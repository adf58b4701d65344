"""A pod's quota goes and comes back alike on cgroup v1, v2 and hybrid, and what it was is never lost."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import pytest
import structlog

from cri_proxy.engine.model import ContainerRecord, Life, Management, pod_cgroup
from cri_proxy.engine.told import told_by, update_of
from cri_proxy.node.quotas import FILE, HINT, Quotas, TakenFile
from policies.machine.cpus import parse_cpus
from policies.model import UNTOUCHED, Placement, Quota
from tests.scenes import make_container, make_pod

POD, OTHER = "/kubepods/podp", "kubepods-burstable-podq.slice"
LIMIT = "200000 100000"
KINDS = ("v1", "v1 joint", "v2", "hybrid")
MOUNTS = {"v1": "cpu", "v1 joint": "cpu,cpuacct", "v2": "", "hybrid": "unified"}


class Tree:
    """Cgroups of one kind below ``root``, with the quota of each pod."""

    def __init__(self, kind: str, root: Path) -> None:
        self.root = root
        self.is_v1 = kind.startswith("v1")
        self._base = root / MOUNTS[kind]

    def folder(self, pod: str) -> Path:
        return self._base / pod_cgroup(pod)

    def write(self, pod: str, limit: str) -> None:
        """As kubelet does; ``QUOTA PERIOD``."""
        self.folder(pod).mkdir(parents=True, exist_ok=True)
        quota, period = limit.split()
        if self.is_v1:
            (self.folder(pod) / "cpu.cfs_quota_us").write_text(quota.replace("max", "-1") + "\n")
            (self.folder(pod) / "cpu.cfs_period_us").write_text(period + "\n")
        else:
            (self.folder(pod) / "cpu.max").write_text(limit + "\n")

    def quota(self, pod: str) -> str:
        file = self.folder(pod) / ("cpu.cfs_quota_us" if self.is_v1 else "cpu.max")
        return file.read_text().split()[0].replace("-1", "max")

    def remove(self, pod: str) -> None:
        for file in self.folder(pod).iterdir():
            file.unlink()
        self.folder(pod).rmdir()


@pytest.fixture(params=KINDS)
def tree(request: Any, tmp_path: Path) -> Tree:
    tree = Tree(request.param, tmp_path)
    tree.write(POD, LIMIT)
    tree.write(OTHER, "50000 100000")
    return tree


def quotas_on(tree: Tree, kept: list[str]) -> Quotas:
    """Quotas whose texts are durable at once."""

    def keep(text: str) -> None:
        kept.append(text)
        quotas.kept(text)

    quotas = Quotas(tree.root, structlog.get_logger(), keep)
    return quotas


def test_a_pods_limit_is_lifted_and_given_back(tree: Tree) -> None:
    kept: list[str] = []
    quotas = quotas_on(tree, kept)
    quotas.follow([POD, OTHER])
    assert (tree.quota(POD), tree.quota(OTHER)) == ("max", "max")
    quotas.follow([OTHER])
    assert (tree.quota(POD), tree.quota(OTHER)) == ("200000", "max")
    quotas.follow([])
    assert (tree.quota(POD), tree.quota(OTHER)) == ("200000", "50000")
    assert [json.loads(text) for text in kept] == [
        {POD: LIMIT, OTHER: "50000 100000"},
        {OTHER: "50000 100000"},
        {},
    ]


def test_a_limit_is_durable_before_it_is_taken(tree: Tree) -> None:
    asked: list[str] = []
    quotas = Quotas(tree.root, structlog.get_logger(), asked.append)
    quotas.follow([POD])
    assert (tree.quota(POD), [json.loads(text) for text in asked]) == ("200000", [{POD: LIMIT}])
    quotas.follow([POD])
    quotas.kept(asked[0])
    assert (tree.quota(POD), len(asked)) == ("max", 1)


def test_a_limit_that_is_not_wanted_any_more_when_it_is_durable_stays(tree: Tree) -> None:
    asked: list[str] = []
    quotas = Quotas(tree.root, structlog.get_logger(), asked.append)
    quotas.follow([POD, OTHER])
    quotas.follow([OTHER])
    quotas.give_back([OTHER])
    quotas.kept(asked[0])
    assert (tree.quota(POD), tree.quota(OTHER)) == ("200000", "50000")
    assert json.loads(asked[-1]) == {}


def test_a_limit_that_kubelet_changes_meanwhile_is_made_durable_anew(tree: Tree) -> None:
    asked: list[str] = []
    quotas = Quotas(tree.root, structlog.get_logger(), asked.append)
    quotas.follow([POD])
    tree.write(POD, "300000 100000")
    quotas.kept(asked[-1])
    assert tree.quota(POD) == "300000"
    quotas.kept(asked[-1])
    assert (tree.quota(POD), json.loads(asked[-1])) == ("max", {POD: "300000 100000"})


def test_what_cannot_be_made_durable_is_tried_again_with_the_next_look(tree: Tree) -> None:
    asked: list[str] = []
    quotas = Quotas(tree.root, structlog.get_logger(), asked.append)
    quotas.follow([POD])
    quotas.not_kept()
    quotas.follow([POD])
    quotas.kept(asked[1])
    assert (tree.quota(POD), len(asked)) == ("max", 2)


def test_limits_are_given_back_once_all_that_runs_is_known(tree: Tree) -> None:
    kept: list[str] = []
    quotas_on(tree, kept).follow([POD])
    after = quotas_on(tree, [])
    after.recall(kept[-1])
    after.follow([], gives_back=False)
    assert (tree.quota(POD), after.taken) == ("max", {POD: LIMIT})
    after.follow([])
    assert tree.quota(POD) == "200000"


def test_the_file_of_limits_is_of_one_boot(tmp_path: Path) -> None:
    file = TakenFile(tmp_path / "state", "boot")
    assert file.read() == ""
    file.write(json.dumps({POD: LIMIT}))
    assert json.loads(file.read()) == {POD: LIMIT}
    assert TakenFile(tmp_path / "state", "later").read() == ""
    (tmp_path / "state" / FILE).write_text("[]")
    assert file.read() == ""


def test_the_next_daemon_gives_back_what_this_one_has_taken(tree: Tree) -> None:
    kept: list[str] = []
    quotas_on(tree, kept).follow([POD])
    after = quotas_on(tree, [])
    after.recall(kept[-1])
    after.give_back([POD, OTHER])
    assert tree.quota(POD) == "200000"


def test_a_pod_without_limit_stays_as_it_is(tree: Tree) -> None:
    kept: list[str] = []
    tree.write(POD, "max 100000")
    quotas = quotas_on(tree, kept)
    quotas.follow([POD])
    quotas.follow([])
    assert (tree.quota(POD), kept) == ("max", [])


def test_what_kubelet_writes_is_lifted_again_and_given_back_in_the_end(tree: Tree) -> None:
    quotas = quotas_on(tree, [])
    quotas.follow([POD])
    tree.write(POD, "300000 100000")
    quotas.follow([POD], changed=[OTHER])
    assert tree.quota(POD) == "300000"  # no look was asked for at this pod
    quotas.follow([POD], changed=[POD])
    assert tree.quota(POD) == "max"
    tree.write(POD, "400000 100000")
    quotas.follow([POD])
    assert tree.quota(POD) == "max"
    quotas.follow([])
    assert tree.quota(POD) == "400000"


def test_a_limit_that_kubelet_has_written_meanwhile_is_not_overwritten(tree: Tree) -> None:
    quotas = quotas_on(tree, [])
    quotas.follow([POD])
    tree.write(POD, "300000 100000")
    quotas.follow([])
    assert (tree.quota(POD), quotas.taken) == ("300000", {})


def test_a_pod_that_is_gone_is_forgotten(tree: Tree) -> None:
    kept: list[str] = []
    quotas = quotas_on(tree, kept)
    quotas.follow([POD])
    tree.remove(POD)
    quotas.follow([])
    assert (quotas.taken, kept[-1], quotas.problems) == ({}, "{}", {})


def test_only_what_was_taken_is_given_back(tree: Tree) -> None:
    quotas = quotas_on(tree, [])
    quotas.follow([POD])
    tree.write(OTHER, "max 100000")
    quotas.give_back([OTHER])
    assert (tree.quota(POD), tree.quota(OTHER)) == ("max", "max")


def test_a_limit_that_cannot_be_written_is_a_problem_until_it_can(tree: Tree) -> None:
    quotas = quotas_on(tree, [])
    file = tree.folder(POD) / ("cpu.cfs_quota_us" if tree.is_v1 else "cpu.max")
    file.unlink()
    file.mkdir()
    quotas.follow([POD])
    assert list(quotas.problems) == [POD]
    assert quotas.problems[POD].endswith(HINT)
    file.rmdir()
    tree.write(POD, LIMIT)
    quotas.follow([POD], changed=())
    assert (quotas.problems, tree.quota(POD)) == ({}, "max")


def test_what_the_state_file_says_may_be_rubbish(tree: Tree) -> None:
    for text in ("", "{", "[]", "7", '"x"'):
        quotas = quotas_on(tree, [])
        quotas.recall(text)
        assert quotas.taken == {}


# ---------------------------------------------------------------------- before a create


def test_a_pod_whose_limit_can_be_written_is_not_refused(tree: Tree) -> None:
    assert quotas_on(tree, []).refusal(POD) == ""
    assert tree.quota(POD) == "200000"


def test_a_pod_that_has_no_cgroup_of_kubelets_is_not_refused(tree: Tree) -> None:
    assert quotas_on(tree, []).refusal("") == ""


def test_a_pod_whose_cgroup_is_not_to_be_seen_is_refused_with_a_hint(tree: Tree) -> None:
    refusal = quotas_on(tree, []).refusal("kubepods-podz.slice")
    assert refusal == f"the pod's cgroup kubepods.slice/kubepods-podz.slice is not below {tree.root}; {HINT}"


def test_a_pod_whose_cgroup_cannot_be_written_is_refused_with_a_hint(tree: Tree) -> None:
    # Root may write every file; only a folder in its place cannot be written.
    file = tree.folder(POD) / ("cpu.cfs_quota_us" if tree.is_v1 else "cpu.max")
    file.unlink()
    file.mkdir()
    refusal = quotas_on(tree, []).refusal(POD)
    assert refusal == f"{file} cannot be written (it is a directory, expected a regular file); {HINT}"


# ---------------------------------------------------------------------- containers


def container(key: str, lifted: bool = True, **more: Any) -> ContainerRecord:
    place = Placement(cpus=parse_cpus("0-1"), lift_quota=lifted)
    return replace(
        ContainerRecord(key, make_container(key, 2), place, Management.PLACED, life=Life.RUNNING), **more
    )


RELEASED = {"stance": Management.RELEASED}
TOLD = [
    # name, grant, what its cgroup says, whether it is told, what it gets back
    ("it has a limit", container("c"), LIMIT, True, None),
    ("it has none", container("c"), "max 100000", False, None),
    ("it may have one", container("c", lifted=False), LIMIT, False, None),
    ("it has ended", container("c", life=Life.HELD), LIMIT, False, None),
    ("nobody knows its cgroup", container("x"), LIMIT, False, None),
    ("released, and without limit", container("c", **RELEASED), "max 100000", True, Quota(200_000, 100_000)),
    ("released, and limited", container("c", **RELEASED), LIMIT, False, None),
    ("released, and never lifted", container("c", lifted=False, **RELEASED), "max 100000", False, None),
]


@pytest.mark.parametrize(
    ("grant", "limit", "told", "give_back"), [case[1:] for case in TOLD], ids=[case[0] for case in TOLD]
)
def test_a_container_whose_cgroup_says_otherwise_is_told_again(
    tree: Tree, grant: ContainerRecord, limit: str, told: bool, give_back: Optional[Quota]
) -> None:
    tree.write(f"{POD}/c", limit)
    found = list(quotas_on(tree, []).drifted([grant], {"c": f"{POD}/c"}.get))
    assert [(key, has_none) for key, has_none, _ in found] == ([("c", give_back is not None)] if told else [])
    for _, has_none, why in found:  # what follows is told
        told_last = told_by(grant)._replace(is_lifted=has_none, cause=why)
        update = update_of(grant, told_last)
        assert update is not None and (update.give_back, update.why) == (give_back, why)
        assert update.placement == (UNTOUCHED if give_back else grant.placement)


def test_what_was_refused_is_told_as_long_as_the_pod_is_there(tree: Tree) -> None:
    quotas, pod = quotas_on(tree, []), replace(make_pod(), cgroup_parent="/kubepods/podz")
    refusal = quotas.refusal(pod.cgroup_parent)
    assert quotas.sentences([pod]) == (f"a CPU quota is not lifted: {refusal}",)
    assert quotas.sentences([]) == quotas.sentences([pod]) == ()
    quotas.refusal(pod.cgroup_parent)
    tree.write(pod.cgroup_parent, LIMIT)
    assert quotas.refusal(pod.cgroup_parent) == ""
    assert quotas.sentences([pod]) == ()
