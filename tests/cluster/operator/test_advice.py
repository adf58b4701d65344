"""Advice: owners that talk where they share a node, and have pods where they do not; steady, and gone with its cause."""

from __future__ import annotations

from typing import Any, Optional

import pytest
import yaml

from cluster.agent.status import AgentView, status_of
from cluster.operator.advice import (
    FADING_S,
    FOLLOW_LABEL,
    MOST_ADVICES,
    MOST_FOLLOWED,
    MOST_TERMS,
    NodeTraffic,
    Owner,
    Published,
    Rates,
    advise,
    label_selector,
    name_of,
    observed,
    owner_of,
    owners_wanted,
    pod_affinity,
    read_published,
    shares,
    steady,
)

WEB, CACHE = Owner("Deployment", "shop", "web"), Owner("Deployment", "shop", "cache")
DB = Owner("StatefulSet", "data", "db")
SELECTORS = {WEB: "app=web", CACHE: "app=cache,tier in (back,middle)", DB: "app=db"}
#: A pod of each, by a number that tells replicas apart.
PODS = {
    WEB: ("shop", "web-6d4cf56db6-{}", ["bcdfg", "hjklm", "npqrs", "tvwxz"]),
    CACHE: ("shop", "cache-7f9b5c8d4-{}", ["24567", "89bcd", "fghjk", "lmnpq"]),
    DB: ("data", "db-{}", ["0", "1", "2", "3"]),
}


NOW, THEN = 1_800_000_000.0, "2027-01-15T08:00:00Z"


def pod(owner: Owner, number: int) -> dict[str, str]:
    namespace, pattern, suffixes = PODS[owner]
    return {"namespace": namespace, "pod": pattern.format(suffixes[number])}


def node(
    name: str, pods: list[tuple[Owner, int]], *groups: tuple[list[tuple[Owner, int]], int]
) -> dict[str, Any]:
    """A NodePlacement with these pods, and groups of some of them that exchange so many bytes a second."""
    return {
        "metadata": {"name": name},
        "status": {
            "placements": [{**pod(*one), "container": c} for one in pods for c in ("app", "sidecar")],
            "affinityGroups": [
                {"members": [{**pod(*one), "container": "app"} for one in members], "bytesPerSecond": rate}
                for members, rate in groups
            ],
        },
    }


def advices(
    *nodes: dict[str, Any],
    selectors: Optional[dict[Owner, str]] = None,
    published: Optional[dict[str, Published]] = None,
    remote: Optional[dict[frozenset[Owner], int]] = None,
    zones: Optional[dict[str, str]] = None,
    now: float = NOW,
) -> list[dict[str, Any]]:
    found = advise(
        [observed(n) for n in nodes],
        remote or {},
        SELECTORS if selectors is None else selectors,
        published or {},
        zones or {},
        now,
    )
    assert all(name == advice["metadata"]["name"] for name, advice in found.items())
    return [advice["status"] for advice in found.values()]


TOGETHER = node("n1", [(WEB, 0), (CACHE, 0)], ([(WEB, 0), (CACHE, 0)], 30_000_000))
WEB_ALONE = node("n2", [(WEB, 1), (WEB, 2)])


# ---------------------------------------------------------------------- owners


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("web-6d4cf56db6-bcdfg", Owner("Deployment", "ns", "web")),
        ("my-web-app-5b7f4c9d8f-x2k4q", Owner("Deployment", "ns", "my-web-app")),
        ("db-0", Owner("StatefulSet", "ns", "db")),
        ("db-shard-12", Owner("StatefulSet", "ns", "db-shard")),
        ("node-exporter-x7k2p", None),
        ("backup-28371234-bcdfg", None),
        ("etcd-master", None),
        ("web", None),
        ("web-01", None),
    ],
)
def test_the_owner_of_a_pod_by_its_name(name: str, owner: Optional[Owner]) -> None:
    assert owner_of("ns", name) == owner


def test_the_same_owner_is_one_object_whatever_node_names_it() -> None:
    assert owner_of("ns", "db-0") is owner_of("ns", "db-1")


def test_pods_count_once_and_groups_of_one_owner_are_no_groups() -> None:
    found = observed(node("n1", [(WEB, 0), (WEB, 1), (DB, 0)], ([(WEB, 0), (WEB, 1)], 5_000_000)))
    assert dict(found.pods) == {WEB: 2, DB: 1} and found.groups == ()


@pytest.mark.parametrize("status", [{}, {"placements": None}, None])
def test_a_node_that_has_said_nothing_yet_counts_for_nothing(status: Any) -> None:
    assert observed({"metadata": {"name": "n1"}, "status": status}).groups == ()


# ---------------------------------------------------------------------- advice


def test_owners_that_talk_on_one_node_and_are_apart_on_another_get_an_advice() -> None:
    [found] = advices(TOGETHER, WEB_ALONE)
    assert found["owners"] == [
        {"kind": "Deployment", "namespace": "shop", "name": "cache", "pods": 1, "nodes": 1},
        {"kind": "Deployment", "namespace": "shop", "name": "web", "pods": 3, "nodes": 2},
    ]
    assert (found["bytesPerSecond"], found["nodes"]) == (30_000_000, ["n1"])
    assert found["target"] == {"kind": "Deployment", "namespace": "shop", "name": "cache"}
    assert found["reason"] == (
        "shop/web and shop/cache exchange 30 MB/s where they share a node; 2 of the 3 pods of shop/web are on nodes "
        "without a pod of shop/cache: add podAffinity to the pod template of shop/web"
    )


def test_the_snippet_is_the_pod_affinity_of_a_pod_template() -> None:
    [found] = advices(TOGETHER, WEB_ALONE)
    [term] = yaml.safe_load(found["podAffinity"])["affinity"]["podAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    assert term == {
        "weight": 100,
        "podAffinityTerm": {
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": {
                "matchLabels": {"app": "cache"},
                "matchExpressions": [{"key": "tier", "operator": "In", "values": ["back", "middle"]}],
            },
        },
    }


def test_others_come_to_a_stateful_set_and_name_its_namespace() -> None:
    first = node("n1", [(WEB, 0), (DB, 0)], ([(WEB, 0), (DB, 0)], 2_000_000))
    [found] = advices(first, node("n2", [(DB, 1)]), node("n3", [(WEB, 1)]))
    assert found["target"]["name"] == "db"
    terms = yaml.safe_load(found["podAffinity"])["affinity"]["podAffinity"]
    [term] = terms["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["podAffinityTerm"]["namespaces"] == ["data"]


def test_rates_of_several_nodes_are_added_up() -> None:
    second = node("n3", [(WEB, 3), (CACHE, 1)], ([(WEB, 3), (CACHE, 1)], 12_000_000))
    [found] = advices(TOGETHER, WEB_ALONE, second)
    assert (found["bytesPerSecond"], found["nodes"]) == (42_000_000, ["n1", "n3"])


@pytest.mark.parametrize(
    "nodes",
    [
        [TOGETHER],
        [WEB_ALONE],
        [node("n1", [(WEB, 0), (CACHE, 0)], ([(WEB, 0), (CACHE, 0)], 999_999)), WEB_ALONE],
        [node("n1", [(WEB, 0), (CACHE, 0)], ([(WEB, 0), (CACHE, 0)], 0)), WEB_ALONE],
        [node("n1", [(WEB, 0)]), node("n2", [(CACHE, 0)])],
        [node("n1", [(WEB, 0), (DB, 0)], ([(WEB, 0), (DB, 0)], 2_000_000)), node("n2", [(DB, 1)])],
    ],
    ids=[
        "they share their only node",
        "one owner",
        "too little traffic",
        "traffic has ended",
        "never seen together",
        "only pods of a StatefulSet are elsewhere",
    ],
)
def test_where_nothing_is_to_be_gained_there_is_no_advice(nodes: list[dict[str, Any]]) -> None:
    assert advices(*nodes) == []


@pytest.mark.parametrize("missing", [WEB, CACHE])
def test_an_owner_that_does_not_exist_after_all_ends_the_advice(missing: Owner) -> None:
    assert owners_wanted([observed(TOGETHER)], {}, {}, NOW) == {WEB, CACHE}
    others = {owner: text for owner, text in SELECTORS.items() if owner != missing}
    assert advices(TOGETHER, WEB_ALONE, selectors=others) == []


# ---------------------------------------------------------------------- from node to node


def test_owners_that_never_share_a_node_get_an_advice_by_what_goes_between() -> None:
    [found] = advices(
        node("n1", [(WEB, 0)]), node("n2", [(WEB, 1), (WEB, 2)]), node("n3", [(DB, 0)]),
        remote={frozenset((WEB, DB)): 25_400_000},
    )  # fmt: skip
    assert (found["bytesPerSecond"], found["remoteBytesPerSecond"], found["nodes"]) == (0, 25_000_000, [])
    assert found["target"] == {"kind": "StatefulSet", "namespace": "data", "name": "db"}
    assert found["reason"] == (
        "shop/web and data/db exchange 25 MB/s from node to node; 3 of the 3 pods of shop/web are on nodes without a pod "
        "of data/db: add podAffinity to the pod template of shop/web"
    )


def test_both_rates_are_told_where_there_are_both() -> None:
    [found] = advices(TOGETHER, WEB_ALONE, remote={frozenset((WEB, CACHE)): 2_000_000})
    assert (found["bytesPerSecond"], found["remoteBytesPerSecond"]) == (30_000_000, 2_000_000)
    assert "exchange 2 MB/s from node to node and 30 MB/s where they share a node; " in found["reason"]


def test_owners_on_the_same_nodes_get_no_advice_whatever_goes_between() -> None:
    both = [(WEB, 0), (CACHE, 0)]
    assert advices(node("n1", both), node("n2", both), remote={frozenset((WEB, CACHE)): 10**9}) == []


def test_a_rate_from_node_to_node_stays_while_it_is_about_that_and_fades_under_half_a_megabyte() -> None:
    apart = [node("n1", [(WEB, 0)]), node("n2", [(CACHE, 0)])]
    pair = frozenset((WEB, CACHE))
    assert advices(*apart, remote={pair: 999_999}) == []
    there = {name_of(pair): Published(Rates(0, 1_000_000), pair)}
    [found] = advices(*apart, remote={pair: 700_000}, published=there)
    assert (found["remoteBytesPerSecond"], found.get("fadingSince")) == (1_000_000, None)
    [found] = advices(*apart, remote={pair: 499_999}, published=there)
    assert (found["remoteBytesPerSecond"], found.get("fadingSince")) == (1_000_000, THEN)


# ---------------------------------------------------------------------- steady


@pytest.mark.parametrize(
    ("rate", "before", "published"),
    [
        (31_415_926, 0, 31_000_000),
        (31_415_926, 30_000_000, 30_000_000),
        (21_000_000, 30_000_000, 30_000_000),
        (19_900_000, 30_000_000, 20_000_000),
        (46_000_000, 30_000_000, 46_000_000),
        (7, 0, 7),
    ],
)
def test_a_published_rate_stays_while_what_is_measured_is_about_that(
    rate: int, before: int, published: int
) -> None:
    assert steady(rate, before) == published


def test_an_advice_comes_with_a_megabyte_a_second_and_goes_after_an_hour_under_half_of_that() -> None:
    pair = frozenset((WEB, CACHE))

    def at(rate: int, *before: Published, now: float = NOW) -> list[dict[str, Any]]:
        first = node("n1", [(WEB, 0), (CACHE, 0)], ([(WEB, 0), (CACHE, 0)], rate))
        return advices(first, WEB_ALONE, published={name_of(pair): each for each in before}, now=now)

    assert at(600_000) == []
    assert at(1_000_000)[0]["bytesPerSecond"] == 1_000_000
    before = Published(Rates(1_000_000), pair)
    assert at(600_000, before)[0]["bytesPerSecond"] == 600_000
    [fading] = at(499_999, before)
    assert fading["fadingSince"] == THEN
    before = before._replace(fading_since=THEN)
    assert at(499_999, before, now=NOW + FADING_S - 1)[0]["fadingSince"] == THEN
    assert "fadingSince" not in at(600_000, before, now=NOW + FADING_S - 1)[0]
    assert at(499_999, before, now=NOW + FADING_S) == []


def test_the_same_traffic_makes_the_same_object_whatever_the_order_of_nodes() -> None:
    nodes = [observed(TOGETHER), observed(WEB_ALONE)]
    assert advise(nodes, {}, SELECTORS, {}, {}, NOW) == advise(nodes[::-1], {}, SELECTORS, {}, {}, NOW)


def test_names_are_names_of_objects_and_tell_owners_of_other_namespaces_apart() -> None:
    other = WEB._replace(namespace="other")
    long = WEB._replace(name="x" * 253)
    assert name_of([WEB, CACHE]) == name_of([CACHE, WEB]) != name_of([other, CACHE])
    assert name_of([WEB, CACHE]).startswith("cache-web-") and len(name_of([long, long])) <= 253


# ---------------------------------------------------------------------- followed


def test_an_advice_that_was_followed_stays_with_its_target_and_its_evidence_is_what_is_local_now() -> None:
    first = advices(node("n1", [(WEB, 0), (WEB, 1)]), node("n2", [(CACHE, 0)]),
                    remote={frozenset((WEB, CACHE)): 8_000_000})  # fmt: skip
    assert first[0]["target"]["name"] == "cache"
    there = read_published({"status": first[0]})
    # The pods of web are now on one node, fewer than those of cache; a third owner is in their group.
    both = [(WEB, 2), (CACHE, 0)]
    [found] = [
        each for each in advices(
            node("n2", [*both, (DB, 0)], ([*both, (DB, 0)], 8_000_000)), node("n3", [(CACHE, 1)]),
            published={name_of([WEB, CACHE]): there},
        ) if len(each["owners"]) == 2
    ]  # fmt: skip
    assert found["target"] == first[0]["target"] and "fadingSince" not in found
    assert (found["bytesPerSecond"], found["remoteBytesPerSecond"]) == (8_000_000, 0)
    assert found["reason"] == (
        "shop/cache and the others exchange 8 MB/s where they share a node; all have a pod of shop/cache on their nodes, "
        "as advised"
    )
    now, before = found["followers"][0]["term"], first[0]["followers"][0]["term"]
    assert now["podAffinityTerm"] == before["podAffinityTerm"]


def test_a_follower_has_its_term_and_beside_it_what_keeps_its_replicas_apart() -> None:
    [found] = advices(node("n1", [(WEB, 0), (WEB, 1), (WEB, 2), (WEB, 3)]), node("n2", [(DB, 0)]),
                      remote={frozenset((WEB, DB)): 8_000_000})  # fmt: skip
    [follower] = found["followers"]
    hostname, of_web = "kubernetes.io/hostname", {"matchLabels": {"app": "web"}}
    own = {"topologyKey": hostname, "labelSelector": of_web, "matchLabelKeys": ["pod-template-hash"]}
    assert follower == {
        **WEB._asdict(),
        "term": {
            "weight": 100,
            "podAffinityTerm": {
                "topologyKey": hostname,
                "namespaces": ["data"],
                "labelSelector": {"matchLabels": {"app": "db"}},
            },
        },
        "apart": {"weight": 25, "podAffinityTerm": own},
        "spread": {**own, "maxSkew": 2, "whenUnsatisfiable": "ScheduleAnyway"},
    }
    assert found["targetLabels"] == {"app": "db"}


@pytest.mark.parametrize(
    ("traffic", "pods", "replicas", "expected"),
    [
        ({DB: 8}, {DB: 1}, 4, ({DB: 100}, 25, 2)),
        ({DB: 8}, {DB: 1}, 1, ({DB: 100}, 50, 1)),
        ({DB: 8, CACHE: 2}, {DB: 1, CACHE: 2}, 10, ({DB: 100, CACHE: 25}, 15, 5)),
        ({DB: 8}, {DB: 8}, 2, ({DB: 25}, 100, 1)),
        ({DB: 8_000_000, CACHE: 1}, {DB: 1, CACHE: 0}, 100, ({DB: 100, CACHE: 1}, 2, 50)),
    ],
    ids=["half of four", "one", "two targets, by traffic", "many pods of the target", "next to nothing"],
)  # fmt: skip
def test_weights_are_by_traffic_and_no_node_draws_more_than_half_of_the_replicas(
    traffic: dict[Owner, int], pods: dict[Owner, int], replicas: int, expected: Any
) -> None:
    assert shares(traffic, pods, replicas) == expected


def test_where_replicas_are_spread_over_zones_the_key_is_the_zones_and_stays_that() -> None:
    zones = {"n1": "a", "n2": "b", "n3": "b"}
    remote = {frozenset((WEB, DB)): 8_000_000}
    nodes = node("n1", [(WEB, 0)]), node("n2", [(WEB, 1)]), node("n3", [(DB, 0)])
    [found] = advices(*nodes, remote=remote, zones=zones)
    keys = {found["followers"][0][part]["podAffinityTerm"]["topologyKey"] for part in ("term", "apart")}
    assert keys == {"topology.kubernetes.io/zone"}
    in_one = node("n2", [(WEB, 1), (WEB, 2)]), node("n3", [(DB, 0)])
    there = {name_of([WEB, DB]): read_published({"status": found})}
    assert advices(*in_one, remote=remote, zones=zones, published=there)[0]["followers"] == found["followers"]
    [fresh] = advices(*in_one, remote=remote, zones=zones)
    assert fresh["followers"][0]["spread"]["topologyKey"] == "kubernetes.io/hostname"


def test_above_each_bound_the_weakest_evidence_goes_and_what_is_there_stays_among_equals() -> None:
    owners = [Owner("Deployment", "shop", f"o{n:03}") for n in range(MOST_ADVICES + 20)]
    selectors = {**{each: f"app={each.name}" for each in owners}, WEB: "app=web"}
    traffic = [
        NodeTraffic("n1", {WEB: 1}),
        *(NodeTraffic(f"x{n}", {each: 1}) for n, each in enumerate(owners)),
    ]
    remote = {frozenset((WEB, each)): 9_000_000 - 10_000 * n for n, each in enumerate(owners)}
    found = advise(traffic, remote, selectors, {}, {}, NOW)
    assert len(found) == MOST_ADVICES
    kept = [name_of((WEB, each)) for each in owners[:MOST_ADVICES]]
    assert set(found) == set(kept)
    followed = [name for name, each in found.items() if FOLLOW_LABEL in each["metadata"].get("labels", {})]
    assert len(followed) <= MOST_FOLLOWED
    of_one = [name for name in found for row in found[name]["status"]["followers"] if row["name"] == "web"]
    assert len(of_one) <= MOST_TERMS
    # The weakest that is there is not displaced by one with a little more.
    weakest = frozenset((WEB, owners[-1]))
    there = {name_of(weakest): Published(Rates(0, remote[weakest]), weakest)}
    assert name_of(weakest) in advise(traffic, remote, selectors, there, {}, NOW)


def test_an_owner_follows_its_four_strongest_advices() -> None:
    targets = [Owner("StatefulSet", "shop", f"db{n}") for n in range(6)]
    selectors = {**{each: f"app={each.name}" for each in targets}, WEB: "app=web"}
    traffic = [
        NodeTraffic("n0", {WEB: 2}),
        *(NodeTraffic(f"n{n + 1}", {t: 1}) for n, t in enumerate(targets)),
    ]
    remote = {frozenset((WEB, each)): (n + 1) * 10_000_000 for n, each in enumerate(targets)}
    found = advise(traffic, remote, selectors, {}, {}, NOW)
    terms = {
        each["status"]["target"]["name"]: row["term"]["weight"]
        for each in found.values()
        for row in each["status"]["followers"]
    }
    assert len(found) == 6 and terms.keys() == {"db5", "db4", "db3", "db2"}
    assert terms["db5"] > terms["db4"] > terms["db3"] > terms["db2"]


# ---------------------------------------------------------------------- selectors


@pytest.mark.parametrize(
    ("text", "selector"),
    [
        ("app=web", {"matchLabels": {"app": "web"}}),
        (
            "app.kubernetes.io/name=web,tier in (a, b),!old,new,zone notin (c)",
            {
                "matchLabels": {"app.kubernetes.io/name": "web"},
                "matchExpressions": [
                    {"key": "tier", "operator": "In", "values": ["a", "b"]},
                    {"key": "old", "operator": "DoesNotExist"},
                    {"key": "new", "operator": "Exists"},
                    {"key": "zone", "operator": "NotIn", "values": ["c"]},
                ],
            },
        ),
        ("", None),
        ("a > 3", None),
    ],
)
def test_a_selectors_text_is_read_as_a_label_selector(text: str, selector: Optional[dict[str, Any]]) -> None:
    assert label_selector(text) == selector


def test_labels_stay_text_in_yaml() -> None:
    text = pod_affinity({"matchLabels": {"on": "true", "number": "1"}}, [])
    terms = yaml.safe_load(text)["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert terms[0]["podAffinityTerm"]["labelSelector"]["matchLabels"] == {"on": "true", "number": "1"}


# ---------------------------------------------------------------------- what agents write


def test_groups_and_placements_are_read_as_agents_write_them() -> None:
    rows = [{**pod(owner, 0), "container": "app", "state": "managed"} for owner in (WEB, CACHE)]
    members = [{**pod(owner, 0), "container": "app"} for owner in (WEB, CACHE)]
    group = {"members": members, "bytes_per_s": 30_000_000, "together": True, "zone": "node-0", "why_not": ""}
    remote = [
        {**pod(WEB, 0), "container": container, "address": "10.244.7.3", "bytes_per_s": 2_000_000}
        for container in ("app", "sidecar")
    ]
    report = {
        "placements": rows,
        "affinity_groups": [group],
        "remote_peers": remote,
        "machine": None,
        "degraded": {},
    }
    status = status_of(AgentView(report), {}, "2026-01-01T00:00:00Z")
    found = observed({"metadata": {"name": "n1"}, "status": status})
    assert dict(found.pods) == {WEB: 1, CACHE: 1}
    [(owners, rate)] = found.groups
    assert owners == {WEB, CACHE} and rate > 20_000_000
    assert found.remote == ((WEB, "10.244.7.3", 4_000_000),)
