"""What a container is to the others, and when the records say so."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Optional

import pytest

from cri_proxy.cli.placement_text import explain_text
from cri_proxy.config.config import SUBJECTS, class_selectors, read_config
from cri_proxy.cri.annotations.keys import KEYS
from cri_proxy.cri.annotations.read import understood
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import ContainerRecord
from cri_proxy.engine.report import container_row, explain, placement_rows
from cri_proxy.engine.snapshot import read_record, write_record
from cri_proxy.isolation.classes import class_of
from cri_proxy.isolation.model import BATCH, CLASSES, PROTECTED, STANDARD
from cri_proxy.text.sources import SettingsSource
from policies.balloons.types import BalloonSettings, BalloonType
from policies.model import NO_CONSTRAINT, Container, Pod, Qos
from policies.registry import POLICIES
from policies.settings import ClassSelectors, EngineOptions, PlacementSettings
from tests.agent import ROOT
from tests.machines import HYGON_7285_2S, VM_NO_CACHE_INFO
from tests.scenes import engine_on, host_of, make_container, make_pod, run

DEFAULT = ClassSelectors()
ON = EngineOptions(classes=DEFAULT)


def container(
    annotations: Optional[Mapping[str, str]] = None,
    labels: Optional[Mapping[str, str]] = None,
    qos: Qos = Qos.BURSTABLE,
    namespace: str = "default",
    name: str = "app",
) -> Container:
    pod = Pod(
        f"sandbox-{name}", f"uid-{name}", name, namespace, labels=labels or {}, annotations=annotations or {}
    )
    return understood(Container(pod, name, qos=qos))


def found(of: Container, selectors: ClassSelectors = DEFAULT, group: str = "") -> tuple[str, str]:
    one = class_of(of, group, selectors)
    return one.kind, one.why


# ---------------------------------------------------------------------- what says it


def test_the_words_of_the_annotation_are_the_classes() -> None:
    [key] = [key for key in KEYS if key.field == "isolation_class"]
    assert tuple(key.read(kind) for kind in CLASSES) == CLASSES


@pytest.mark.parametrize(
    "key",
    [
        "class.cri-resmgr.io/container.app",
        "cri-resmgr.io/class/container.app",
        "class.cri-resmgr.io/pod",
        "class.cri-resmgr.io",
        "cri-resmgr.io/class",
    ],
)
def test_the_annotation_counts_before_all_else_in_every_form(key: str) -> None:
    others = {"volcano.sh/preemptable": "true"}
    labels = {"koordinator.sh/qosClass": "BE"}
    one = container({**others, key: "Protected"}, labels, Qos.BESTEFFORT)
    assert found(one) == (PROTECTED, "annotation cri-resmgr.io/class")


def test_a_container_may_have_another_class_than_its_pod() -> None:
    said = {"cri-resmgr.io/class": "batch", "class.cri-resmgr.io/container.app": "standard"}
    assert found(container(said))[0] == STANDARD
    assert found(container(said, name="other"))[0] == BATCH


def test_a_word_that_is_no_class_is_noted_and_ignored() -> None:
    one = container({"cri-resmgr.io/class": "latency"}, qos=Qos.BESTEFFORT)
    [note] = one.preferences.notes
    assert note == (
        'annotation cri-resmgr.io/class: "latency" is not understood, expected protected, standard or batch; it is '
        "ignored"
    )
    assert found(one) == (BATCH, "qos/BestEffort")


def test_preemptable_pods_are_batch_and_others_are_not_for_it() -> None:
    for text, kind in (("true", BATCH), ("True", BATCH), ("false", PROTECTED), ("", PROTECTED)):
        assert found(container({"volcano.sh/preemptable": text}, qos=Qos.GUARANTEED))[0] == kind


@pytest.mark.parametrize(
    ("label", "kind"),
    [
        ("LSE", PROTECTED),
        ("LSR", PROTECTED),
        ("LS", STANDARD),
        ("BE", BATCH),
        ("SYSTEM", BATCH),
        ("x", BATCH),
    ],
)
def test_koordinators_class_counts_before_selectors(label: str, kind: str) -> None:
    one = container(labels={"koordinator.sh/qosClass": label}, qos=Qos.BESTEFFORT)
    assert found(one)[0] == kind


SELECTORS = ClassSelectors(
    protected=("qos/Guaranteed", "namespace/shop*", "balloon/fast"),
    batch=("qos/BestEffort", "namespace/*-night", "balloon/slow"),
)


@pytest.mark.parametrize(
    ("namespace", "qos", "group", "expected"),
    [
        ("default", Qos.GUARANTEED, "", (PROTECTED, "qos/Guaranteed")),
        ("default", Qos.BESTEFFORT, "", (BATCH, "qos/BestEffort")),
        ("default", Qos.BURSTABLE, "", (STANDARD, "nothing says otherwise")),
        ("shop", Qos.BESTEFFORT, "", (PROTECTED, "namespace/shop*")),
        ("train-night", Qos.GUARANTEED, "", (BATCH, "namespace/*-night")),
        ("shop", Qos.GUARANTEED, "slow[1]", (BATCH, "balloon/slow")),
        ("train-night", Qos.BESTEFFORT, "fast[0]", (PROTECTED, "balloon/fast")),
        ("shop-night", Qos.BURSTABLE, "", (PROTECTED, "namespace/shop*")),
        ("default", Qos.BURSTABLE, "slower[0]", (STANDARD, "nothing says otherwise")),
    ],
)
def test_balloons_count_before_namespaces_before_qos_classes_and_protected_before_batch(
    namespace: str, qos: Qos, group: str, expected: tuple[str, str]
) -> None:
    assert found(container(namespace=namespace, qos=qos), SELECTORS, group) == expected


# ---------------------------------------------------------------------- options


def settings(text: str) -> Any:
    return read_config([SettingsSource("c.yaml", text)]).config


def test_containers_have_classes_where_a_subject_is_on() -> None:
    assert class_selectors(settings("")) is None
    for key in SUBJECTS:
        on = {"isolation.monitoring": "true", "isolation.turbo_most": "200%"}.get(key, "observe")
        assert class_selectors(settings(f"{key}: {on}")) == ClassSelectors()
    given = 'isolation: {caches: enforce, batch: ["namespace/ci-*", qos/BestEffort], protected: []}'
    assert class_selectors(settings(given)) == ClassSelectors((), ("namespace/ci-*", "qos/BestEffort"))


OFF = """
import sys
from cri_proxy.config.config import engine_options, read_config
from cri_proxy.text.sources import SettingsSource
from policies.model import Qos
from tests.agent import ROOT
from tests.machines import HYGON_7285_2S
from tests.scenes import engine_on, make_container, run
given = read_config([SettingsSource("c.yaml", sys.argv[1])]).config
run(engine_on(HYGON_7285_2S, options=engine_options(given)), make_container(qos=Qos.BESTEFFORT), "one")
print(*[name for name in sys.modules if name.startswith("cri_proxy.isolation")])
"""


def test_what_finds_classes_is_not_imported_where_isolation_is_off() -> None:
    def imported(text: str) -> str:
        done = subprocess.run([sys.executable, "-c", OFF, text], capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert imported("") == ""
    assert "cri_proxy.isolation.classes" in imported("isolation: {caches: observe}")


# ---------------------------------------------------------------------- the record


def test_without_isolation_there_is_no_class_and_nothing_of_it_is_shown() -> None:
    engine = engine_on(HYGON_7285_2S)
    record = run(engine, container(qos=Qos.BESTEFFORT), "one")
    assert (record.isolation, record.isolation_why) == ("", "")
    assert "class:" not in explain_text(explain(engine, "one") or {})


def test_a_record_has_the_class_from_the_create_on_and_explain_tells_it() -> None:
    engine = engine_on(HYGON_7285_2S, options=ON)
    admission = engine.admit(container(qos=Qos.BESTEFFORT), NO_CONSTRAINT, 0.0)
    assert engine.grants[admission.ticket].isolation == BATCH
    engine.bind(admission.ticket, "one", 0.0)
    assert (engine.grants["one"].isolation, engine.grants["one"].isolation_why) == (BATCH, "qos/BestEffort")
    [row] = placement_rows(engine)
    assert (row["isolation"], row["isolation_why"]) == (BATCH, "qos/BestEffort")
    assert container_row(engine, engine.grants["one"], engine.zones)["isolation"] == BATCH
    assert "  class: batch (qos/BestEffort)" in explain_text(explain(engine, "one") or {}).splitlines()


def test_adopted_and_restored_containers_have_one() -> None:
    engine = engine_on(HYGON_7285_2S, options=ON)
    bare = replace(run(engine_on(HYGON_7285_2S), container(qos=Qos.GUARANTEED), "one"), isolation="")
    engine.adopt(bare)
    assert engine.grants["one"].isolation == PROTECTED
    after = engine_on(HYGON_7285_2S, options=ON)
    # What the daemon before has found by another configuration counts no more.
    stale = replace(bare, isolation=BATCH, isolation_why="namespace/default")
    after.restore([stale], [], [], [], {})
    assert (after.grants["one"].isolation, after.grants["one"].isolation_why) == (PROTECTED, "qos/Guaranteed")
    off = engine_on(HYGON_7285_2S)
    off.restore([stale], [], [], [], {})
    assert (off.grants["one"].isolation, off.grants["one"].isolation_why) == ("", "")


def test_a_container_in_a_balloon_is_what_its_type_says() -> None:
    types = (BalloonType("slow", namespaces=("default",), max_cpus=4),)
    host = host_of(VM_NO_CACHE_INFO)
    policy = POLICIES["balloons"](host.topology, PlacementSettings(balloons=BalloonSettings(types)))
    selectors = ClassSelectors(batch=("balloon/slow",))
    engine = engine_on(host, policy=policy, options=EngineOptions(classes=selectors))
    record = run(engine, make_container("app", 1, pod=make_pod()), "one")
    assert record.placement.group == "slow[0]"
    assert (record.isolation, record.isolation_why) == (BATCH, "balloon/slow")


def written(engine: Engine) -> dict[Any, Any]:
    return {key: value for (kind, key), value in engine.drain().items() if kind == "grant"}


def test_another_configuration_gives_another_class_which_is_written_and_changes_the_version() -> None:
    engine = engine_on(HYGON_7285_2S, options=ON)
    run(engine, container(qos=Qos.BESTEFFORT, name="one"), "one")
    run(engine, container(qos=Qos.GUARANTEED, name="two"), "two")
    engine.drain()
    version = engine.version
    engine.rehost(engine.host, options=EngineOptions(classes=ClassSelectors(batch=("namespace/none",))))
    assert {key: grant.isolation for key, grant in engine.grants.items()} == {
        "one": STANDARD,
        "two": PROTECTED,
    }
    assert engine.version > version
    assert written(engine)["one"].isolation == STANDARD
    engine.rehost(engine.host, options=EngineOptions())
    assert {grant.isolation for grant in engine.grants.values()} == {""}


def test_a_resize_keeps_the_class() -> None:
    engine = engine_on(HYGON_7285_2S, options=ON)
    one = make_container("app", 2, pod=make_pod(), qos=Qos.GUARANTEED)
    run(engine, one, "one")
    more = replace(one.resources, milli_request=4000, milli_limit=4000)
    admission = engine.resize("one", more, NO_CONSTRAINT, 1.0)
    assert engine.grants[admission.ticket].isolation == PROTECTED
    engine.commit(admission.ticket, 1.0)
    assert engine.grants["one"].isolation == PROTECTED


# ---------------------------------------------------------------------- annotations that change


def pod_of(engine: Engine, key: str) -> Pod:
    return engine.grants[key].container.pod


def test_annotations_that_the_runtime_lists_otherwise_change_the_class_and_nothing_else() -> None:
    engine = engine_on(HYGON_7285_2S, options=ON)
    one = container({"cri-resmgr.io/class": "batch", "cri-resmgr.io/l3": "spread"}, name="one")
    engine.add_pod(one.pod)
    record = run(engine, one, "one")
    version = engine.version
    listed = {"cri-resmgr.io/class": "protected", "cri-resmgr.io/l3": "require", "x": "y"}
    engine.follow_classes(one.pod.id, {}, listed)
    now = engine.grants["one"]
    assert (now.isolation, now.container.preferences.l3, now.placement) == (
        PROTECTED,
        "spread",
        record.placement,
    )
    assert engine.version > version
    # Read again from what is written down, it is the same.
    again = read_record("grant", write_record(now))
    assert again.container.preferences == now.container.preferences
    version = engine.version
    engine.follow_classes(one.pod.id, {}, listed)
    assert engine.version == version


def test_a_class_of_caches_and_bandwidth_that_the_runtime_lists_otherwise_is_the_containers() -> None:
    engine = engine_on(HYGON_7285_2S, options=ON)
    one = container({"rdtclass.resource-policy.nri.io/pod": "gold"}, name="one")
    engine.add_pod(one.pod)
    run(engine, one, "one")
    version = engine.version
    engine.follow_classes(one.pod.id, {}, {"rdt-class.cri-resmgr.io": "silver"})
    assert engine.grants["one"].container.preferences.rdt_class == "silver"
    assert engine.version > version


def test_an_annotation_that_is_gone_says_nothing_any_more() -> None:
    engine = engine_on(HYGON_7285_2S, options=ON)
    one = container({"volcano.sh/preemptable": "true"}, {"koordinator.sh/qosClass": "LSE"}, name="one")
    engine.add_pod(one.pod)
    run(engine, one, "one")
    engine.follow_classes(one.pod.id, one.pod.labels, {})
    assert engine.grants["one"].isolation == PROTECTED
    engine.follow_classes(one.pod.id, {}, {})
    assert engine.grants["one"].isolation == STANDARD


# ---------------------------------------------------------------------- other versions


def test_a_record_of_a_version_without_classes_is_read_and_so_is_one_that_has_them() -> None:
    engine = engine_on(HYGON_7285_2S, options=ON)
    record = run(engine, container(qos=Qos.BESTEFFORT), "one")
    text = write_record(record)
    assert read_record("grant", text) == record
    before = text.replace('"isolation":"batch","isolation_why":"qos/BestEffort"', '"later":1')
    assert before != text
    read: ContainerRecord = read_record("grant", before)
    assert (read.isolation, read.isolation_why) == ("", "")
