"""Which plugin has set what: claims, conflicts and clear markers, field by field and key by key."""

from __future__ import annotations

import pytest

from cri_api import nri_v1alpha1_pb2 as nri
from cri_proxy.nri.merge import KEYED, AdjustmentConflict, Claims, owner_of

FOO, BAR, BAZ = "10-foo", "20-bar", "30-baz"
FIELDS = [field for field in nri.Field.values() if field not in (nri.Field.Value("None"), nri.OciHooks)]


def claims(owners: nri.OwningPlugins, plugin: str) -> Claims:
    return Claims(owners, "c1", plugin)


@pytest.mark.parametrize("field", FIELDS, ids=nri.Field.Name)
def test_a_field_is_owned_by_who_sets_it_first(field: nri.Field.ValueType) -> None:
    owners = nri.OwningPlugins()
    key = "k" if field in KEYED else ""
    claims(owners, FOO).claim(field, key)
    with pytest.raises(AdjustmentConflict) as conflict:
        claims(owners, BAR).claim(field, key)
    assert (
        str(conflict.value)
        == f'plugins "20-bar" and "10-foo" both tried to set {nri.Field.Name(field)} {key}'
    )
    assert owner_of(owners, "c1", field, key) == FOO


@pytest.mark.parametrize("field", FIELDS, ids=nri.Field.Name)
def test_who_clears_a_field_may_set_it_and_nobody_else(field: nri.Field.ValueType) -> None:
    owners = nri.OwningPlugins()
    key = "k" if field in KEYED else ""
    claims(owners, FOO).claim(field, key)
    claims(owners, BAR).clear(field, key)
    assert owner_of(owners, "c1", field, key) == BAR
    with pytest.raises(AdjustmentConflict, match='plugins "30-baz" and "20-bar" both tried'):
        claims(owners, BAZ).claim(field, key)
    claims(owners, BAR).claim(field, key)
    assert owner_of(owners, "c1", field, key) == BAR
    with pytest.raises(AdjustmentConflict, match='plugins "20-bar" and "20-bar" both tried'):
        claims(owners, BAR).claim(field, key)


def test_keys_and_containers_are_owned_apart() -> None:
    owners = nri.OwningPlugins()
    claims(owners, FOO).claim(nri.Env, "A")
    claims(owners, BAR).claim(nri.Env, "B")
    Claims(owners, "c2", BAR).claim(nri.Env, "A")
    assert [owner_of(owners, *where) for where in (("c1", nri.Env, "A"), ("c1", nri.Env, "B"))] == [FOO, BAR]
    assert owner_of(owners, "c2", nri.Env, "A") == BAR
    assert owner_of(owners, "c3", nri.Env, "A") == ""
    assert owner_of(owners, "c2", nri.Mounts, "A") == ""


def test_hooks_have_all_who_add_to_them_as_owners() -> None:
    owners = nri.OwningPlugins()
    for plugin in (FOO, BAR, BAR, BAZ):
        claims(owners, plugin).join(nri.OciHooks)
    assert owner_of(owners, "c1", nri.OciHooks) == "10-foo,20-bar,30-baz"


def test_asking_for_owners_makes_none() -> None:
    owners = nri.OwningPlugins()
    assert owner_of(owners, "c1", nri.Env, "A") == owner_of(owners, "c1", nri.CPUShares) == ""
    assert owners == nri.OwningPlugins()
