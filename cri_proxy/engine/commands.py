"""What people do to places: release a container, manage it. Transitions of the engine."""

from __future__ import annotations

from dataclasses import replace

from cri_proxy.engine.decision import opted_out
from cri_proxy.engine.ledger import Ledger
from cri_proxy.engine.peer_text import with_peers
from cri_proxy.engine.recompute import give_places, placed, refresh
from cri_proxy.engine.records import Grant, Life, Stance, Told
from cri_proxy.engine.told import differs
from policies.model import altered


def release(ledger: Ledger, container_id: str) -> None:
    """Give a container the CPUs and memory nodes it would have without us; it is not managed from then on."""
    grant = ledger.grants.get(container_id)
    if grant is None or grant.life is Life.CREATING or grant.stance is Stance.KUBELET:
        return
    is_on_its_way = grant.stance is Stance.RELEASED and grant.runs_on == _unmanaged_place(ledger, grant)[0]
    if is_on_its_way and differs(ledger, container_id):
        return  # it is still to be told
    # Of one that was found foreign, or is released again since the runtime had failed, it may still be away;
    # and of one whose record was lost it is not known.
    was_lifted = grant.placement.lift_quota and grant.stance is not Stance.OBSERVED
    was_lifted = was_lifted or grant.stance is Stance.ADOPTED or grant.quota_taken
    give_back = grant.quota if was_lifted and grant.life is not Life.HELD else None
    is_ours = grant.stance in (Stance.PLACED, Stance.ADOPTED, Stance.OBSERVED)
    # What it has may be another one than it was told: it is told, whatever that is.
    told = Told(None, is_lifted=give_back is not None, cause="released")
    if not is_ours and not _keeps_its_place(ledger, grant):
        ledger.put(replace(grant, stance=Stance.RELEASED, displaced=None, why="released by command"))
        ledger.tell(container_id, told._replace(cpus=grant.runs_on, mems=grant.runs_on_mems))
        return
    cpus, mems = _unmanaged_place(ledger, grant)
    # What it may be found with, if the runtime fails.
    placement = replace(grant.placement, cpus=grant.cpus, lift_quota=was_lifted)
    now = replace(
        grant, stance=Stance.RELEASED, placement=placement, runs_on=cpus, runs_on_mems=mems, displaced=None
    )
    ledger.put(replace(now, why="released by command"))
    is_told = grant.stance is not Stance.OBSERVED and grant.life is not Life.HELD
    ledger.tell(container_id, told if is_told else told._replace(cpus=cpus, mems=mems, is_lifted=False))


def _keeps_its_place(ledger: Ledger, grant: Grant) -> bool:
    """Whether a released container was found where it was before: the runtime has not taken the update."""
    online = ledger.host.topology.online
    is_there = grant.runs_on & online == grant.placement.cpus & online
    return (
        grant.stance is Stance.RELEASED and is_there and grant.runs_on != _unmanaged_place(ledger, grant)[0]
    )


def _unmanaged_place(ledger: Ledger, grant: Grant) -> tuple[frozenset[int], frozenset[int]]:
    return (
        grant.fence.cpus or ledger.host.parent_cpus or ledger.host.usable,
        grant.fence.mems or ledger.host.mems,
    )


def is_adoptable(ledger: Ledger, grant: Grant) -> bool:
    """Whether a container is left alone for no reason of its own: it was released, ran before us or under ``observe``."""
    is_left = grant.stance in (Stance.RELEASED, Stance.ADOPTED, Stance.OBSERVED)
    return is_left and grant.life in (Life.CREATED, Life.RUNNING) and not opted_out(ledger, grant.container)


def manage(ledger: Ledger, container_id: str) -> bool:
    """Place a container that is not managed; False if it is unknown or cannot be placed.

    :raises PlacementRefused, BudgetSpent: as the policy.
    """
    grant = ledger.grants.get(container_id)
    if grant is None or grant.life not in (Life.CREATED, Life.RUNNING):
        return False
    if grant.stance in (Stance.PLACED, Stance.KUBELET):
        return False
    grant = replace(grant, container=altered(grant.container, milli_size=None))
    with ledger.without([container_id]):
        decision = ledger.place(ledger.request(grant.container, grant.fence, container_id))
        decision = with_peers(ledger, grant.container, decision, container_id)
    if not decision.placement.cpus:
        return False
    managed = placed(grant, decision.placement, decision.why)
    ledger.put(managed)
    give_places(ledger, decision, grant.container)
    ledger.record("adopt", container_id, managed, grant.since_s)
    refresh(ledger)
    told = ledger.told.get(container_id, Told(None))
    ledger.tell(container_id, told._replace(cpus=None, cause="taken under management by command"))
    return True
