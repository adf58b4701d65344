"""MutatingAdmissionPolicy on a real server: pods of an owner follow its advices at create, and no other pod does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cluster.operator.advice import Owner
from tests.cluster.real.control_plane import ControlPlane
from tests.cluster.real.follow import (
    PREFERRED,
    REQUIRED,
    admitted,
    advices,
    followed,
    policy_in_force,
    terms,
    written,
)
from tests.cluster.real.kubectl import Kubectl
from tests.cluster.real.test_operator import until

pytestmark = pytest.mark.cluster

WEB, DB = Owner("Deployment", "follows", "web"), Owner("StatefulSet", "follows", "db")
HOSTNAME = "kubernetes.io/hostname"


@pytest.fixture(scope="module")
def following(rights: ControlPlane, kubectl: Kubectl) -> Iterator[ControlPlane]:
    with policy_in_force(rights, kubectl, "follows"):
        yield rights


@pytest.fixture(scope="module")
def advised(following: ControlPlane) -> Iterator[str]:
    """The name of the advice by which pods of web come to db."""
    found = advices({(WEB, DB): 20_000_000})
    with written(following, found):
        until(lambda: bool(followed(admitted(following, WEB))))
        yield next(iter(found))


def test_a_new_pod_of_the_follower_prefers_the_targets_node_and_says_which_advice(
    following: ControlPlane, advised: str
) -> None:
    pod = admitted(following, WEB)
    [term] = terms(pod)
    assert term["weight"] == 100
    assert term["podAffinityTerm"] == {
        "topologyKey": HOSTNAME,
        "labelSelector": {"matchLabels": {"app": "db"}},
    }
    assert followed(pod) == [advised]
    # Beside it replicas keep apart: those of the same rollout, and none is kept from starting.
    [apart] = terms(pod, "podAntiAffinity")
    [spread] = pod["spec"]["topologySpreadConstraints"]
    for own in (apart["podAffinityTerm"], spread):
        assert own["topologyKey"] == HOSTNAME and own["matchLabelKeys"] == ["pod-template-hash"]
        assert own["labelSelector"]["matchLabels"] == {"app": "web"}
    assert spread["whenUnsatisfiable"] == "ScheduleAnyway"


@pytest.mark.parametrize(
    "owner",
    [DB, WEB._replace(name="webs"), WEB._replace(kind="StatefulSet"), WEB._replace(namespace="default")],
    ids=["the target", "another name", "another kind", "a namespace without the label"],
)  # fmt: skip
def test_pods_of_others_are_made_as_they_were_sent(
    following: ControlPlane, advised: str, owner: Owner
) -> None:
    pod = admitted(following, owner)
    assert "affinity" not in pod["spec"] and "topologySpreadConstraints" not in pod["spec"]
    assert followed(pod) == []


def one_of(*values: str) -> dict[str, Any]:
    """A selector by a list."""
    return {"matchExpressions": [{"key": "app", "operator": "In", "values": list(values)}]}


def own(kind: str, when: str, selector: Any, **more: Any) -> dict[str, Any]:
    """An affinity that a pod's template has."""
    term = {"topologyKey": HOSTNAME, "labelSelector": selector, **more}
    return {kind: {when: [term if when == REQUIRED else {"weight": 1, "podAffinityTerm": term}]}}


@pytest.mark.parametrize(
    ("affinity", "follows"),
    [
        (own("podAntiAffinity", REQUIRED, {"matchLabels": {"app": "db"}}), False),
        (own("podAntiAffinity", PREFERRED, {"matchLabels": {"app": "db"}}), False),
        (own("podAntiAffinity", REQUIRED, {"matchLabels": {"tier": "back"}}), False),
        (own("podAntiAffinity", REQUIRED, {}), False),
        (own("podAntiAffinity", REQUIRED, one_of("db", "x")), False),
        (own("podAntiAffinity", REQUIRED, one_of("x")), True),
        (own("podAntiAffinity", REQUIRED, {"matchLabels": {"app": "web"}}), True),
        (own("podAntiAffinity", REQUIRED, {"matchLabels": {"app": "db"}}, namespaces=["other"]), True),
        (own("podAntiAffinity", REQUIRED, {"matchLabels": {"app": "db"}}, namespaceSelector={}), False),
        (own("podAffinity", PREFERRED, {"matchLabels": {"app": "db"}}), False),
        (own("podAffinity", REQUIRED, {"matchLabels": {"app": "cache"}}), True),
        ({"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [one_of("x")]}}}, True),
    ],
    ids=["against it", "against it, preferred", "perhaps against it", "against all", "against it by a list",
         "against others by a list", "against its own kind", "against those of another namespace",
         "against it in all namespaces", "the same term", "for another", "for nodes"],
)  # fmt: skip
def test_a_pods_own_terms_come_first(
    following: ControlPlane, advised: str, affinity: dict[str, Any], follows: bool
) -> None:
    before = {"podAffinity": [], "podAntiAffinity": [], **affinity}
    pod = admitted(following, WEB, affinity=affinity)
    assert followed(pod) == ([advised] if follows else [])
    for kind, own_terms in affinity.items():
        for when, each in own_terms.items():
            has = pod["spec"]["affinity"][kind][when]
            assert (has[: len(each)] if isinstance(each, list) else has) == each
    added = len(terms(pod)) - len(before["podAffinity"].get(PREFERRED, []) if before["podAffinity"] else [])
    assert added == int(follows)


def test_an_own_spread_constraint_stays_the_only_one(following: ControlPlane, advised: str) -> None:
    mine = {"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
    pod = admitted(following, WEB, topologySpreadConstraints=[mine])
    assert pod["spec"]["topologySpreadConstraints"] == [mine]
    assert followed(pod) == [advised]


def test_of_many_advices_four_are_followed_and_the_replicas_kept_apart_once(following: ControlPlane) -> None:
    api_owner = Owner("Deployment", "follows", "api")
    rates = {(api_owner, Owner("StatefulSet", "follows", f"db{n}")): n * 10_000_000 for n in range(1, 7)}
    found = advices(rates)
    # As an operator of another version might write them: six for one owner.
    some = next(row for each in found.values() for row in each["status"]["followers"])
    for each in found.values():
        each["metadata"]["labels"] = {"cri-resmgr.io/follow": "true"}
        each["status"]["followers"] = [some]
    with written(following, found):
        until(lambda: len(followed(admitted(following, api_owner))) > 0)
        pod = admitted(following, api_owner)
    assert len(followed(pod)) <= 4 and len(terms(pod)) == len(followed(pod))
    assert len(terms(pod, "podAntiAffinity")) == 1 == len(pod["spec"]["topologySpreadConstraints"])


def test_an_advice_without_the_operators_label_is_followed_by_none(following: ControlPlane) -> None:
    weak = Owner("Deployment", "follows", "weak")
    found = advices({(weak, DB): 2_000_000})
    [advice] = found.values()
    advice["metadata"].pop("labels")
    with written(following, found):
        assert followed(admitted(following, weak)) == []
