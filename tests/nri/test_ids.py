"""Which id a plugin knows a container by, and back."""

from __future__ import annotations

from cri_api import nri_v1alpha1_pb2 as nri
from cri_api import runtime_v1_pb2 as cri
from cri_proxy.nri.pod_cache import PLUGIN_ID, Ids, PodCache, annotated


def test_most_containers_have_one_id() -> None:
    ids = Ids()
    ids.note("a", {"other": "x"})
    ids.note("b", {PLUGIN_ID: "b"})
    assert [(ids.shown(key), ids.real(key)) for key in "ab"] == [("a", "a"), ("b", "b")]


def test_a_pair_is_known_in_both_directions_until_it_is_forgotten() -> None:
    ids = Ids()
    ids.note("b", {PLUGIN_ID: "a"})
    assert (ids.shown("b"), ids.real("a"), ids.real("b")) == ("a", "b", "b")
    ids.keep("b".__eq__)
    assert ids.shown("b") == "a"
    ids.keep("a".__eq__)
    assert (ids.shown("b"), ids.real("a")) == ("b", "a")
    ids.forget("b")


def test_the_last_container_that_claims_an_id_has_it_whichever_is_forgotten() -> None:
    ids = Ids()
    ids.note("b", {PLUGIN_ID: "a"})
    ids.note("c", {PLUGIN_ID: "a"})
    ids.forget("b")
    assert ids.real("a") == "c"


def test_the_annotation_lies_over_the_request() -> None:
    request = cri.CreateContainerRequest(
        config=cri.ContainerConfig(annotations={"k": "v", PLUGIN_ID: "by a plugin"})
    )
    made = cri.CreateContainerRequest.FromString(request.SerializeToString() + annotated("a"))
    assert dict(made.config.annotations) == {"k": "v", PLUGIN_ID: "a"}


def test_what_is_known_is_shown_by_the_plugins_id() -> None:
    pod_cache = PodCache()
    shown = pod_cache.remember(nri.Container(id="b", annotations={PLUGIN_ID: "a", "k": "v"}))
    assert (shown.id, dict(shown.message.annotations)) == ("a", {"k": "v"})
    assert pod_cache.containers["b"] is shown
    pod_cache.forget("b")
    assert pod_cache.ids.shown("b") == "b"


def test_what_is_made_anew_keeps_its_id_even_if_it_is_made_twice() -> None:
    pod_cache = PodCache()
    pod_cache.remember(nri.Container(id="a", args=["x"]))
    pod_cache.made_anew("a", "b")
    pod_cache.made_anew("b", "c")
    assert list(pod_cache.containers) == ["c"]
    assert (pod_cache.containers["c"].id, pod_cache.ids.shown("c"), pod_cache.ids.real("a")) == (
        "a",
        "a",
        "c",
    )
    assert pod_cache.remember(nri.Container(id="c")).id == "a"
