"""Groups follow from who may run beside whom, a domain."""

from __future__ import annotations

from cri_proxy.isolation.model import (
    BATCH,
    EIGHTHS,
    PROTECTED,
    STANDARD,
    BandwidthInfo,
    CacheDomain,
    CacheInfo,
    IsolatedContainer,
    ResctrlInfo,
    Step,
)
from cri_proxy.isolation.treatment import BATCH_GROUP, RdtClass, TreatmentSettings, settings_of, wanted

DOMAINS = tuple(CacheDomain(number, frozenset(range(4 * number, 4 * number + 4))) for number in range(4))
HYGON = ResctrlInfo(
    {"L3": CacheInfo(0xFFFF, is_sparse=True)},
    BandwidthInfo(1, 1, 2048, EIGHTHS),
    {"L3": DOMAINS, "MB": DOMAINS},
)
SETTINGS = TreatmentSettings()


def container(key: str, cls: str, cpus: range, rdt_class: str = "") -> IsolatedContainer:
    return IsolatedContainer(key, f"default/{key}/main", cls, "", frozenset(cpus), rdt_class=rdt_class)


def test_nothing_is_divided_where_nothing_meets() -> None:
    apart = [container("p", PROTECTED, range(0, 4)), container("b", BATCH, range(4, 16))]
    assert wanted(apart, HYGON, SETTINGS).groups == ()


def test_batch_has_its_part_only_in_the_l3_that_a_protected_container_may_run_in() -> None:
    found = wanted(
        [container("p", PROTECTED, range(0, 4)), container("b", BATCH, range(0, 8))], HYGON, SETTINGS
    )
    (group,) = found.groups
    assert (group.name, group.members) == (BATCH_GROUP, {"b"})
    assert group.schemata["L3"] == {0: "1f", 1: "ffff", 2: "ffff", 3: "ffff"}
    assert group.schemata["MB"] == {0: "132", 1: "2048", 2: "2048", 3: "2048"}
    assert group.why == {0: "default/p/main is protected and may run in L3 0, too"}


def test_all_batch_containers_are_one_group_with_a_mask_for_each_l3() -> None:
    met = [
        container("p", PROTECTED, range(0, 4)),
        container("q", PROTECTED, range(8, 12)),
        container("b", BATCH, range(0, 4)),
        container("c", BATCH, range(8, 12)),
        container("s", STANDARD, range(0, 16)),
    ]
    (group,) = wanted(met, HYGON, SETTINGS).groups
    assert group.members == {"b", "c"}
    assert group.schemata["L3"] == {0: "1f", 1: "ffff", 2: "1f", 3: "ffff"}


def test_a_step_counts_in_its_own_domain() -> None:
    met = [container("p", PROTECTED, range(16)), container("b", BATCH, range(16))]
    (group,) = wanted(met, HYGON, SETTINGS, {2: Step(cache=0.05, bandwidth=0.1)}).groups
    assert group.schemata["L3"] == {0: "1f", 1: "1f", 2: "1", 3: "1f"}
    assert group.schemata["MB"] == {0: "132", 1: "132", 2: "44", 3: "132"}


def test_a_container_of_a_configured_class_is_treated_by_that_alone() -> None:
    gold = RdtClass("gold", "cri-resmgr.gold", {"L3": {0: "ff00", 1: "ff00", 2: "ff00", 3: "ff00"}})
    given = [container("p", PROTECTED, range(0, 4), "gold"), container("b", BATCH, range(0, 4))]
    (group,) = wanted(given, HYGON, SETTINGS, rdt={"gold": gold}).groups
    assert (group.name, group.members) == ("cri-resmgr.gold", {"p"})


def test_a_class_without_a_container_takes_no_class_of_service() -> None:
    gold = RdtClass("gold", "cri-resmgr.gold", {})
    default = RdtClass("system/default", "", {"L3": {0: "ff"}})
    found = wanted([], HYGON, SETTINGS, rdt={"gold": gold, "system/default": default})
    assert [group.name for group in found.groups] == [""]


def test_groups_without_a_class_of_service_are_left_out_and_said() -> None:
    few = ResctrlInfo({"L3": CacheInfo(0xF, closids=2)}, None, {"L3": DOMAINS})
    classes = {name: RdtClass(name, f"cri-resmgr.{name}", {}) for name in ("a", "b")}
    found = wanted(
        [container("x", STANDARD, range(4), "a"), container("y", STANDARD, range(4), "b")],
        few,
        SETTINGS,
        rdt=classes,
    )
    assert [group.name for group in found.groups] == ["cri-resmgr.a"]
    assert found.notes == (
        "2 classes of service are all there are: cri-resmgr.b is treated as the root group",
    )


def test_a_kernel_that_divides_nothing_is_said() -> None:
    nothing = ResctrlInfo({}, None, {"MB": DOMAINS})
    found = wanted([container("p", PROTECTED, range(4)), container("b", BATCH, range(4))], nothing, SETTINGS)
    assert not found.groups and "divides neither" in found.notes[0]


def test_each_value_of_a_group_is_a_setting_of_its_subject() -> None:
    (group,) = wanted(
        [container("p", PROTECTED, range(0, 4)), container("b", BATCH, range(0, 8))], HYGON, SETTINGS
    ).groups
    found = {setting.place: (setting.subject, setting.value, setting.why) for setting in settings_of(group)}
    assert found["resctrl:cri-resmgr.batch#L3:0"] == (
        "caches",
        "1f",
        "default/p/main is protected and may run in L3 0, too",
    )
    assert found["resctrl:cri-resmgr.batch#MB:1"] == ("bandwidth", "2048", "")
