"""The parameters of a claim: what is asked, in a container's words; what is not known is refused by name and place."""

from __future__ import annotations

from typing import Any

import pytest

from cri_proxy.claims.parameters import (
    API_VERSION,
    KIND,
    BadParameters,
    CpuParameters,
    ParametersEntry,
    parameters_for,
    read_parameters,
)
from policies.model import PlacementPreferences


def document(**keys: Any) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": KIND, **keys}


@pytest.mark.parametrize(
    ("keys", "preferences"),
    [
        ({}, PlacementPreferences(ownership="exclusive")),
        ({"smt": "full-core"}, PlacementPreferences(ownership="exclusive", smt="full-core")),
        ({"smt": "any"}, PlacementPreferences(ownership="exclusive", smt="any")),
        ({"l3": "one"}, PlacementPreferences(ownership="exclusive", l3="require")),
        ({"l3": "few"}, PlacementPreferences(ownership="exclusive", l3="prefer")),
        ({"l3": "spread"}, PlacementPreferences(ownership="exclusive", l3="spread")),
        (
            {"isolation": "protected"},
            PlacementPreferences(ownership="exclusive", isolation_class="protected"),
        ),
        ({"memory": "pin"}, PlacementPreferences(ownership="exclusive", memory="pin")),
    ],
)
def test_what_is_asked_is_what_a_containers_annotations_would_say(
    keys: dict[str, str], preferences: PlacementPreferences
) -> None:
    assert read_parameters(document(**keys), "p").preferences() == preferences


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (None, "p is None, expected an object with apiVersion and kind"),
        ([], "p is a list, expected an object with apiVersion and kind"),
        ({"kind": KIND}, f"p.apiVersion is None, expected {API_VERSION}"),
        ({"apiVersion": "v1", "kind": KIND}, f"p.apiVersion is 'v1', expected {API_VERSION}"),
        ({"apiVersion": API_VERSION, "kind": "Pod"}, f"p.kind is 'Pod', expected {KIND}"),
        (document(smtt="hide"), "p has the unknown key 'smtt', expected smt, l3, memory, isolation"),
        (document(smt="none"), "p.smt is 'none', expected full-core, hide or any"),
        (document(smt=None), "p.smt is None, expected full-core, hide or any"),
        (document(l3=1), "p.l3 is 1, expected one, few or spread"),
        (document(l3=["one"]), "p.l3 is a list, expected one, few or spread"),
        (document(memory="off"), "p.memory is 'off', expected pin or prefer"),
        (
            document(isolation="Protected"),
            "p.isolation is 'Protected', expected protected, standard or batch",
        ),
        (
            document(**{"x" * 200: 1}),
            f"p has the unknown key '{'x' * 56}..., expected smt, l3, memory, isolation",
        ),
    ],
)
def test_what_cannot_be_understood_is_named_with_its_place(value: Any, sentence: str) -> None:
    with pytest.raises(BadParameters) as refused:
        read_parameters(value, "p")
    assert str(refused.value) == sentence


def entry(*requests: str, **said: str) -> ParametersEntry:
    return ParametersEntry(requests, CpuParameters(**said))


def test_of_several_entries_the_later_counts_key_by_key_for_the_requests_it_names() -> None:
    entries = [entry(smt="hide", l3="one"), entry("a", smt="any"), entry("b", l3="few")]
    assert parameters_for(entries, "a") == CpuParameters(smt="any", l3="one")
    assert parameters_for(entries, "a/large") == CpuParameters(smt="any", l3="one")
    assert parameters_for(entries, "b") == CpuParameters(smt="hide", l3="few")
    assert parameters_for(entries, "c") == CpuParameters(smt="hide", l3="one")
    assert parameters_for([], "a") == CpuParameters()


def test_a_subrequest_may_be_named() -> None:
    assert parameters_for([entry("a/large", smt="any")], "a/large").smt == "any"
    assert parameters_for([entry("a/large", smt="any")], "a/small").smt == ""
