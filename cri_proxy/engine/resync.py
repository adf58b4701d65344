"""The runtime's list of containers against the engine's records.

Run at start, when the runtime comes back, and every so often. The list may be older than the records (calls
went on while it was fetched): what was bound after ``listed_at_s`` is not judged by it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields, replace
from functools import cached_property
from typing import Optional, TypeVar

from cri_proxy.cri.device_hints import Use
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import (
    ContainerRecord,
    Life,
    ListedContainer,
    Management,
    Ticket,
    TicketKind,
    Told,
)
from cri_proxy.engine.place import BY_KUBELET, opted_out
from cri_proxy.engine.told import told_by
from policies.frozen import frozen
from policies.machine.cpus import NO_CPUS
from policies.model import NO_CONSTRAINT, Constraint, Container, Placement, Qos, Resources, kept_once

#: A cpuset that was changed back this often, each time within DRIFT_WINDOW_S of our repair, is another program's.
FLIPS, DRIFT_WINDOW_S = 3, 60.0
#: How long a create that ended with the daemon before keeps its place while the runtime does not list its container, in
#: seconds: kubelet asks again within 15 (its workers' back-off of 10, and jitter), and gets the place.
ORPHAN_S = 20.0
#: Containers judged in one go: a millisecond or two where all of them are news. One by whose end or beginning others have
#: other CPUs takes longer: a go ends with the one by which it has changed so many records.
SLICE = 50
RECORDS = 300

_Item = TypeVar("_Item")


@frozen
class Resync:
    """What a resync found: ids by what it was. ``ignoring``: the runtime has not set their memory nodes, told twice."""

    adopted: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    drifted: tuple[str, ...] = ()
    resized: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    bound: tuple[str, ...] = ()
    cancelled: tuple[str, ...] = ()
    ignoring: tuple[str, ...] = ()


def unknown_ids(engine: Engine, seen: Collection[ListedContainer]) -> tuple[str, ...]:
    """Containers that ``resync`` will want the details of: alive, not in the records and not on their way."""
    dead = _never_run(engine, seen, _latest_attempts(seen))
    flying = _names_of_tickets(engine, in_doubt=False) | _names_of_tickets(engine, in_doubt=True)
    # The attempt before of a container on its way: until that is there, its place may have to be put back.
    aside = {g.key for t in engine.tickets.values() for g in t.replaces}
    return tuple(
        s.id
        for s in seen
        if not s.exited
        and s.id not in engine.grants
        and s.id not in aside
        and s.id not in dead
        and (s.pod_uid, s.name, s.attempt) not in flying
    )


def _latest_attempts(seen: Collection[ListedContainer]) -> dict[tuple[str, str], int]:
    """The last attempt in the list, by pod uid and name, of every container of which one was not started."""
    names = {(s.pod_uid, s.name) for s in seen if not (s.running or s.exited)}
    latest: dict[tuple[str, str], int] = {}
    for s in seen if names else ():
        if (name := (s.pod_uid, s.name)) in names:
            latest[name] = max(s.attempt, latest.get(name, 0))
    return latest


def _never_run(
    engine: Engine, items: Iterable[ListedContainer], latest: Mapping[tuple[str, str], int]
) -> frozenset[str]:
    """Containers that were created and will never be started: kubelet has gone on to a later attempt of the same.

    It does so when it never gets the reply of a create; what it has asked for anew has the place. One in the records
    gives way to a later attempt that exists; one that is not known also to one that is on its way.
    """
    dead = set()
    for s in items:
        if s.running or s.exited:
            continue
        name, is_known = (s.pod_uid, s.name), s.id in engine.grants
        grants = [engine.grants[key] for key in engine.names.get(name, ())]
        attempts = [g.container.attempt for g in grants if not (is_known and g.life is Life.CREATING)]
        if max([latest.get(name, 0), *attempts]) > s.attempt:
            dead.add(s.id)
    return frozenset(dead)


@frozen
class Listing:
    """What was seen of the runtime.

    ``details``: containers by id for ``unknown_ids``. ``listed_at_s``: when the list was asked for. ``then``: the
    engine's grants at that time, empty if nothing can have changed since. ``pending``: ids with an update of
    ours on its way then or since, as it grows; what was seen of them says nothing. ``enforce`` False: nothing can be
    sent, and so nothing is repaired; what runs is taken over all the same. ``is_newer``: the daemon before has ended
    with records that were not saved, so what runs is right where they say otherwise. ``sandboxes``: the ids of those there
    are, listed after the containers; None = they were not asked for. ``is_first``: the records are of the daemon before, and
    a container that has another cpuset was not told the one it should have.
    """

    seen: Mapping[str, ListedContainer]
    listed_at_s: float
    details: Mapping[str, Container] = field(default_factory=dict)
    then: Mapping[str, ContainerRecord] = field(default_factory=dict)
    pending: Collection[str] = frozenset()
    enforce: bool = True
    is_newer: bool = False
    sandboxes: Optional[Collection[str]] = None
    is_first: bool = False


def resync(engine: Engine, listing: Listing, now_s: float) -> Resync:
    """Bring the records in line with what runs, in one go."""
    return merged(resync_slices(engine, listing, now_s))


def merged(parts: Iterable[Resync]) -> Resync:
    """Several slices as one."""
    parts = list(parts)
    return Resync(*[tuple(item for part in parts for item in getattr(part, f.name)) for f in fields(Resync)])


def resync_slices(engine: Engine, listing: Listing, now_s: float) -> Iterator[Resync]:
    """The same in slices, so that calls can pass in between (design rule 13): each ends with the SLICEth container, or with
    the one by which it has changed RECORDS records."""
    seen, rivals = listing.seen, _Rivals(listing.seen)
    if listing.is_newer:
        yield from _take_over(engine, listing, rivals, now_s)
    yield from _resolve_tickets(engine, listing, now_s)
    latest = _latest_attempts(seen.values())
    yield from _remove_gone(engine, listing, latest)
    # What looks exclusive to one that runs is not exclusive to one that was only created.
    items = sorted(seen.values(), key=lambda s: not (s.running or s.exited))
    followed = 0
    while followed < len(items):
        slice_ = items[followed : followed + SLICE]
        dead = _never_run(engine, slice_, latest)
        done, found = _follow_all(engine, slice_, dead, listing, rivals, now_s)
        followed += done
        yield found


class _Slice:
    """One go at containers, and when it has lasted long enough."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._version = engine.version
        self.done = 0

    def is_over(self) -> bool:
        """Another container has been judged: whether the next one is for the next go."""
        self.done += 1
        return self.done == SLICE or self._engine.version - self._version >= RECORDS


def _remove_gone(engine: Engine, listing: Listing, latest: Mapping[tuple[str, str], int]) -> Iterator[Resync]:
    """Records of containers that are gone from the runtime, or that will never be started: they go."""
    seen = listing.seen
    gone = [g.key for g in engine.grants.values() if _is_gone(g, listing)]
    never_run = _never_run(engine, seen.values(), latest)
    left = deque([*gone, *sorted(never_run & engine.grants.keys())])
    while True:
        slice_, removed = _Slice(engine), []
        while left:
            key = left.popleft()
            grant = engine.grants.get(key)  # calls have passed since
            is_dead = grant is not None and key in never_run and grant.life is Life.CREATED
            if is_dead or (grant is not None and _is_gone(grant, listing)):
                engine.remove(key, "never started: there is a later attempt" if key in never_run else "")
                removed.append(key)
            if slice_.is_over():
                break
        yield Resync(removed=tuple(removed))
        if not left:
            return


def _is_gone(grant: ContainerRecord, listing: Listing) -> bool:
    is_older = grant.is_made and grant.since_s < listing.listed_at_s
    return is_older and grant.key not in listing.seen


def _take_over(engine: Engine, listing: Listing, rivals: _Rivals, now_s: float) -> Iterator[Resync]:
    def adoption(item: ListedContainer, container: Container, owned: frozenset[int]) -> ContainerRecord:
        return _adoption(engine, item, container, now_s, rivals, owned)

    for adopted in take_over(engine, listing.seen, listing.details, listing.listed_at_s, adoption):
        for key in adopted:
            _follow_memory(engine, listing.seen[key], at_rest=True)
        yield Resync(adopted=adopted)


def _follow_all(
    engine: Engine, items: Iterable[ListedContainer], dead: Collection[str], listing: Listing, rivals: _Rivals,
    now_s: float
) -> tuple[int, Resync]:  # fmt: skip
    """Judge containers, but for the ``dead``, until a slice is over; how many that were, and what was found."""
    drifted: list[str] = []
    resized: list[str] = []
    foreign: list[str] = []
    adopted: list[str] = []
    ignoring: list[str] = []
    resizing = {t.target for t in engine.tickets.values()}
    slice_ = _Slice(engine)
    for item in items:
        if item.id in dead:
            pass
        elif item.id in engine.grants:
            _follow(engine, item, now_s, listing.listed_at_s)
            _note_where(engine, item)
            _note_whose(engine, item)
            if item.claims and item.id not in resizing:
                _note_claims(engine, item)
            was = engine.grants.get(item.id)
            resources = _news_of_resources(engine, item, listing)
            if resources is not None and item.id not in resizing:
                engine.follow_resources(item.id, resources, now_s, listing.enforce)
                resized.append(item.id)
            # What a container runs on says nothing that was told to run elsewhere since, or asked to.
            in_motion = item.id in listing.pending or item.id in resizing
            at_rest = was is not None and not in_motion and _unchanged(was, listing.then)
            if listing.is_first and not in_motion:
                _recall(engine, item)
            if at_rest:
                _check_cpuset(engine, item, now_s, listing.enforce, drifted, foreign, ignoring)
            _follow_memory(engine, item, at_rest)
        elif not item.exited and item.id in listing.details:
            container = listing.details[item.id]
            owned = engine.node.exclusive
            engine.adopt(_adoption(engine, item, container, now_s, rivals, owned))
            _follow_memory(engine, item, at_rest=True)
            # Its next containers' requests will not say what its runtime handler is.
            if item.sandbox_id not in engine.pods:
                engine.add_pod(container.pod)
            adopted.append(item.id)
        if slice_.is_over():
            break
    news = {
        "drifted": drifted,
        "resized": resized,
        "foreign": foreign,
        "adopted": adopted,
        "ignoring": ignoring,
    }
    return slice_.done, Resync(**{name: tuple(ids) for name, ids in news.items()})


def _recall(engine: Engine, item: ListedContainer) -> None:
    """An update that was lost with the daemon before is no other program's change: the container lacks it."""
    grant, told, online = engine.grants.get(item.id), engine.told.get(item.id), engine.host.topology.online
    if grant is None or told is None or grant.life is Life.HELD or not item.cpus or item.runs_in:
        return
    has_it = told.cpus is not None and item.cpus & online == told.cpus & online
    if not has_it and _set_by_us(grant, online) is not None:
        engine.saw(item.id, cpus=item.cpus, cause="it was not told before the daemon ended")


def _unchanged(grant: ContainerRecord, then: Mapping[str, ContainerRecord]) -> bool:
    """Whether a container's place is what it was when its cpuset was looked at."""
    return not then or (grant.key in then and then[grant.key].placement == grant.placement)


def _news_of_resources(engine: Engine, item: ListedContainer, listing: Listing) -> Optional[Resources]:
    """A container's resources if it is not known with them, or is still to be placed by them; else None."""
    grant = engine.grants.get(item.id)
    if grant is None or grant.life is Life.HELD:
        return None
    known = grant.container.told
    before = listing.then.get(item.id, grant).container.told
    # What was changed since its cgroup was looked at is newer than that.
    found = known if item.resources is None or before != known else item.resources
    return found if found != known or (listing.enforce and grant.is_outgrown) else None


def _resolve_tickets(engine: Engine, listing: Listing, now_s: float) -> Iterator[Resync]:
    """Tickets in doubt: found in the list, they are bound; not found where none can come any more, they are cancelled."""
    seen = listing.seen
    by_name = {(s.pod_uid, s.name, s.attempt): s.id for s in seen.values() if s.id not in engine.grants}
    judged: set[str] = set()
    left: deque[str] = deque()
    # A create that never appeared brings back those that it had set aside: they are judged after it.
    while left := left or _in_doubt(engine, judged):
        slice_, found = _Slice(engine), []
        targets: set[str] = set()
        while left:
            ticket = engine.tickets.get(left.popleft())  # calls have passed since
            if ticket is not None and ticket.in_doubt:
                judged.add(ticket.id)
                if ticket.kind is TicketKind.RESIZE:
                    targets.add(ticket.target)
                    _resolve_resize(engine, ticket, seen.get(ticket.target), now_s)
                else:
                    found.append(_resolve_create(engine, ticket, by_name, listing, now_s))
            if slice_.is_over():
                break
        _as_seen(engine, seen, targets)
        yield merged(found)


def _resolve_create(
    engine: Engine,
    ticket: Ticket,
    by_name: Mapping[tuple[str, str, int], str],
    listing: Listing,
    now_s: float,
) -> Resync:
    """A create whose end is not known. ``by_name``: the ids of listed containers that are not in the records."""
    container = engine.grants[ticket.key].container
    found = by_name.get((container.pod.uid, container.name, container.attempt))
    if found is not None:
        engine.bind(ticket.id, found, now_s)
        return Resync(bound=(found,))
    if why := _why_over(engine, ticket, listing, now_s):
        engine.cancel(ticket.id, now_s, why)
        return Resync(cancelled=(ticket.id,))
    return Resync()


def _why_over(engine: Engine, ticket: Ticket, listing: Listing, now_s: float) -> str:
    """Why a create that the runtime does not list is not coming any more; "" = it may be."""
    if listing.listed_at_s <= ticket.since_s:
        return ""
    # 1. It needs its sandbox, which there was when it was asked for.
    if listing.sandboxes is not None and engine.grants[ticket.key].container.pod.id not in listing.sandboxes:
        return "its sandbox is gone"
    # 2. The runtime gives up a call whose connection has ended, and its caller has had the time to ask again.
    if ticket.id in engine.orphans:
        first_s = engine.orphans[ticket.id] = min(engine.orphans[ticket.id], now_s)
        if now_s - first_s >= ORPHAN_S:
            return "its call ended with the daemon before this one, and the runtime does not list it since"
    # 3. One whose call has ended otherwise may take as long as others did.
    patience_s = max(engine.options.doubt_s, 2 * engine.longest_create_s)
    return "never appeared in the runtime's list" if now_s - ticket.since_s > patience_s else ""


def _in_doubt(engine: Engine, judged: Collection[str]) -> deque[str]:
    """The ids of the tickets in doubt that were not judged yet."""
    return deque(t.id for t in engine.tickets.values() if t.in_doubt and t.id not in judged)


def _as_seen(engine: Engine, listing: Mapping[str, ListedContainer], targets: Iterable[str]) -> None:
    """Containers whose resizes were in doubt: it is seen what they have."""
    for target in sorted(targets):
        grant, item = engine.grants.get(target), listing.get(target)
        if grant is None or item is None or item.cpus is None or grant.stance is not Management.PLACED:
            continue
        told = engine.told.get(target, Told(None))
        engine.amend(grant, _seen(told, item, "the outcome of a resize is unknown"))


def _resolve_resize(engine: Engine, ticket: Ticket, item: Optional[ListedContainer], now_s: float) -> None:
    """A resize whose end is not known: what the container has now tells whether the runtime has made it.

    Its resources do where they are others by it; else its cpuset.
    """
    old = engine.grants.get(ticket.target)
    if old is not None and item is not None and not item.exited:
        asked, known = engine.grants[ticket.key].container.told, old.container.told
        if item.resources is not None and asked != known:
            is_made = item.resources != known
        elif item.cpus is None:
            return  # not looked at this time
        else:
            is_made = item.cpus == ticket.sent.cpus or item.cpus != old.placement.cpus
        if not is_made:
            engine.cancel(ticket.id, now_s, "the runtime was not reached")
            return
    engine.commit(ticket.id, now_s)


def _names_of_tickets(engine: Engine, in_doubt: bool) -> set[tuple[str, str, int]]:
    containers = [engine.grants[t.key].container for t in engine.tickets.values() if t.in_doubt is in_doubt]
    return {(c.pod.uid, c.name, c.attempt) for c in containers}


def names_in_doubt(engine: Engine) -> set[tuple[str, str, int]]:
    """Pod uid, name and attempt of the containers whose requests are in doubt."""
    return _names_of_tickets(engine, in_doubt=True)


def _follow(engine: Engine, item: ListedContainer, now_s: float, listed_at_s: float) -> None:
    if item.exited:
        engine.exited(item.id, item.exit_code, now_s)
    elif item.running:
        grant = engine.grants[item.id]
        if grant.life is Life.HELD and grant.since_s < listed_at_s:  # it was told to stop, and has not
            running = replace(grant, life=Life.RUNNING, hold_until_s=0.0, exit_code=None)
            engine.amend(running, engine.told.get(item.id))
        else:
            engine.started(item.id)


def _note_where(engine: Engine, item: ListedContainer) -> None:
    """Remember whether what we set binds the container's processes at all."""
    grant = engine.grants.get(item.id)
    if grant is not None and item.runs_in is not None and item.runs_in != grant.runs_in:
        engine.amend(replace(grant, runs_in=item.runs_in), engine.told.get(item.id))


def _note_whose(engine: Engine, item: ListedContainer) -> None:
    """Have a container's CPUs be kubelet's where its file says so, and there alone."""
    grant, host = engine.grants.get(item.id), engine.host
    if grant is None or grant.life is Life.HELD:
        return
    given = host.kubelets(grant.container, item.id)
    told = engine.told.get(item.id)
    if grant.stance is Management.KUBELET and given is None and host.knows_kubelet:
        home = _runs_on(engine, item) & (host.topology.cpus.keys() | host.topology.data.offline)
        place, why = kept_once(Placement(home=home)), "kubelet's CPUs no more: it keeps what it has"
        engine.amend(replace(grant, stance=Management.ADOPTED, placement=place, why=why), told)
    elif grant.stance is Management.ADOPTED and given is not None and item.cpus == given:
        engine.amend(replace(grant, stance=Management.KUBELET, placement=Placement(), why=BY_KUBELET), told)


def _note_claims(engine: Engine, item: ListedContainer) -> None:
    """Know a container's claims where its record lacks them, as one of a version that knew none: it has their CPUs then.

    What the runtime does not show is no news: not every runtime shows all of it.
    """
    grant = engine.grants.get(item.id)
    if grant is None or grant.life is Life.HELD:
        return
    known = grant.container.claims
    claims = tuple(sorted({*known, *item.claims}))
    if claims != known:
        container = replace(grant.container, claims=claims)
        engine.amend(replace(grant, container=container), engine.told.get(item.id))


def _check_cpuset(
    engine: Engine,
    item: ListedContainer,
    now_s: float,
    enforce: bool,
    drifted: list[str],
    foreign: list[str],
    ignoring: list[str],
) -> None:
    """Find a cpuset that is not what its container was told last; give up on one that another program keeps changing."""
    grant = engine.grants.get(item.id)
    if grant is None or grant.life is Life.HELD:
        return
    if enforce and _lacks_its_quota(item, grant):
        engine.saw(item.id, is_lifted=True, cause="its CPU quota had not come back")
    told, online = engine.told.get(grant.key, Told(None)), engine.host.topology.online
    ours = _set_by_us(grant, online)
    # Where it runs its own cgroup does not say.
    if item.cpus is None or (ours is not None and item.runs_in):
        return
    if ours is not None and not enforce:  # while nothing is repaired, no other writer is found to undo it
        if told.cpus is None or item.cpus & online != told.cpus & online:
            engine.saw(item.id, cpus=item.cpus or None, is_sure=True)
        return
    cpus = _runs_on(engine, item)
    if ours is None and engine.lacks(item.id):  # it is still to be told what it should have
        engine.saw(item.id, cpus=item.cpus or None, is_sure=True)
        return
    if ours is None:
        now = _as_others_have_it(engine, grant, cpus)
        if now is not grant:
            engine.amend(now, told._replace(cpus=now.runs_on))
        return
    if not told.cpus or not told.is_sure:
        engine.saw(item.id, cpus=item.cpus or None, mems=item.mems or told.mems, is_sure=True, refused="")
        return
    same_mems = item.mems is None or not ours.mems or told.ignores_mems or item.mems in (told.mems, ours.mems)
    # An empty one is inherited, or of no writer: ours is gone, also where as many CPUs come down from above.
    if item.cpus and cpus & online in (told.cpus & online, ours.cpus & online) and same_mems:
        if cpus & online != told.cpus & online:  # another program has set what it should have
            engine.saw(item.id, cpus=item.cpus)
        return
    recent = grant.repairs if grant.repairs and now_s - grant.repairs[-1] <= DRIFT_WINDOW_S else ()
    if recent and not same_mems and item.cpus and cpus & online == told.cpus & online:
        engine.saw(item.id, mems=item.mems, ignores_mems=True)
        ignoring.append(grant.key)
        return
    if len(recent) >= FLIPS:
        foreign.append(grant.key)
        why = "another writer keeps changing its cpuset"
        engine.amend(replace(grant, stance=Management.FOREIGN, runs_on=cpus, why=why))
        return
    drifted.append(grant.key)
    seen = _seen(told, item, "its cpuset had been changed")
    engine.amend(replace(grant, repairs=(*recent, now_s)), seen)


def _seen(told: Told, item: ListedContainer, cause: str) -> Told:
    """What a container was seen to have: where its cpuset is empty, that is not known for sure."""
    return told._replace(
        cpus=item.cpus or None, mems=item.mems or told.mems, cause=cause, is_sure=True, refused=""
    )


def _lacks_its_quota(item: ListedContainer, grant: ContainerRecord) -> bool:
    """Whether a container is without its quota only since we have taken it and could not give it back."""
    is_ours = grant.stance in (Management.PLACED, Management.ADOPTED) and not grant.lifted
    return is_ours and item.has_no_quota and grant.quota_taken and grant.quota is not None


def _follow_memory(engine: Engine, item: ListedContainer, at_rest: bool) -> None:
    """Charge a container's memory where it is. ``at_rest``: its memory nodes are what they were when they were read."""
    grant = engine.grants.get(item.id)
    if grant is not None and grant.life is not Life.HELD and not item.exited:
        engine.note_memory(item.id, item.mems if at_rest else None, item.held)


def _runs_on(engine: Engine, item: ListedContainer) -> frozenset[int]:
    """The CPUs of a container, whose cpuset may be empty."""
    return item.cpus or item.inherited or engine.host.parent_cpus or engine.host.usable


def _set_by_us(grant: ContainerRecord, online: frozenset[int]) -> Optional[Placement]:
    """What we made the cpuset of a container; None if others have."""
    if grant.stance is Management.PLACED:
        return grant.placement
    if grant.stance is Management.ADOPTED and grant.runs_on & online != grant.placement.home & online:
        return Placement(cpus=grant.runs_on)
    return None


def _as_others_have_it(engine: Engine, grant: ContainerRecord, cpus: frozenset[int]) -> ContainerRecord:
    """The record of a container that is not ours, charged where it runs; of an observed one where it would."""
    if cpus == grant.runs_on:
        return grant
    placement = grant.placement
    others = engine.node.exclusive - grant.exclusive
    if grant.stance is Management.KUBELET and not cpus.isdisjoint(others):
        why = "it was moved onto exclusive CPUs of other containers, which stay theirs"
        return replace(grant, stance=Management.FOREIGN, runs_on=cpus, why=why)
    if grant.stance is Management.ADOPTED:
        placement = replace(placement, home=cpus, exclusive=placement.exclusive & cpus)
    return replace(grant, runs_on=cpus, placement=placement)


def _adoption(
    engine: Engine,
    item: ListedContainer,
    container: Container,
    now_s: float,
    rivals: _Rivals,
    owned: frozenset[int],
) -> ContainerRecord:
    """The record of a container that runs without one: it keeps what it has. ``owned``: what others own."""
    cpus = _runs_on(engine, item)
    grant = ContainerRecord(
        key=item.id,
        container=container,
        placement=Placement(),
        stance=Management.OPTED_OUT,
        life=Life.RUNNING if item.running else Life.CREATED,
        runs_on=cpus,
        runs_on_mems=item.mems or NO_CPUS,
        since_s=now_s,
        why=opted_out(engine, container),
        runs_in=item.runs_in or "",
        quota_taken=item.has_no_quota,
    )
    if grant.why:
        return grant
    if engine.host.kubelets(container, item.id):
        return replace(grant, stance=Management.KUBELET, why=BY_KUBELET)
    exclusive = NO_CPUS
    topology = engine.host.topology
    known = topology.cpus.keys() | topology.data.offline
    home = cpus if cpus <= known else cpus & known  # many have one set
    claimed, taken = engine.claims.get(item.id, NO_CPUS), owned | engine.node.reserved
    may_own = engine.policy.owns_exclusively and not container.claims
    if may_own and claimed and claimed <= cpus and claimed.isdisjoint(taken):
        exclusive = claimed
    elif may_own and cpus.isdisjoint(taken) and _looks_exclusive(container, item, rivals):
        exclusive = cpus
    return replace(
        grant,
        stance=Management.ADOPTED,
        placement=kept_once(Placement(home=home, exclusive=exclusive)),
        why="it ran before this daemon knew it: it keeps what it has",
    )


def _looks_exclusive(container: Container, item: ListedContainer, rivals: _Rivals) -> bool:
    """Guaranteed, whole CPUs, as many as its cpuset has, and on no other container's cpuset.

    Containers without a cpuset say nothing: they were kept off no CPU.
    """
    request = container.resources.milli_request
    whole = container.qos is Qos.GUARANTEED and request > 0 and request % 1000 == 0
    if not whole or not item.cpus or len(item.cpus) * 1000 != request:
        return False
    return not rivals.are_on(item.cpus, item)


class _Rivals:
    """The cpusets of the containers of a list, and how many have each: few, of many containers."""

    def __init__(self, seen: Mapping[str, ListedContainer]) -> None:
        self._seen = seen

    @cached_property
    def _sets(self) -> tuple[Counter[frozenset[int]], Counter[frozenset[int]]]:
        there = [s for s in self._seen.values() if s.cpus and not s.exited]
        running = Counter(s.cpus for s in there if s.running and s.cpus)
        return running, Counter(s.cpus for s in there if s.cpus)

    def are_on(self, cpus: frozenset[int], item: ListedContainer) -> bool:
        """Whether another container than one that has these CPUs is on any of them."""
        # One that was created and not started is on its CPUs by name only.
        found = self._sets[0 if item.running else 1]
        return any(
            not cpus.isdisjoint(theirs) and count > (theirs == cpus) for theirs, count in found.items()
        )


def may_be_owned(seen: Mapping[str, ListedContainer]) -> frozenset[int]:
    """The CPUs of containers that no other is on: as of ``_looks_exclusive``, they may own them."""
    rivals, there = _Rivals(seen), [s for s in seen.values() if not s.exited]
    return NO_CPUS.union(*[s.cpus for s in there if s.cpus and not rivals.are_on(s.cpus, s)])


# ---------------------------------------------------------------------- after an end with records that were not saved

# Containers came, went and changed places that the records know nothing of, and the runtime has been told of it. So no
# cpuset is changed back: what the records lack is adopted, what contradicts what runs is given up, and what follows for
# others from both mostly is what they run with already.

#: Makes the record of a container that runs; given what others own.
Adoption = Callable[[ListedContainer, Container, frozenset[int]], ContainerRecord]


def take_over(
    engine: Engine, seen: Mapping[str, ListedContainer], details: Mapping[str, Container], listed_at_s: float,
    adoption: Adoption
) -> Iterator[tuple[str, ...]]:  # fmt: skip
    """Bring the records in line with what runs, in slices; ``details``: containers by id that are not in the records.

    Yields the ids of the adopted; nothing is to be sent before the last slice. What the others were told last is what they
    run on.
    """
    live = [item for item in seen.values() if not item.exited]
    details = {**details, **_made_otherwise(engine, live)}
    unknown = [item for item in live if item.id not in engine.grants and item.id in details]
    gone, tickets = _gone(engine, seen, unknown, details, listed_at_s)
    owned = _owned(engine, {*gone, *(ticket.key for ticket in tickets)})
    found = [adoption(item, details[item.id], owned) for item in unknown]
    # 1. What is not so any more goes, and what owns CPUs comes, at once; then what shares them.
    owners = [grant for grant in found if grant.exclusive]
    engine.take_over(gone, tickets, owners)
    yield tuple(_with_pod(engine, grant) for grant in owners)
    for part in _parts([grant for grant in found if not grant.exclusive]):
        part = [grant for grant in part if grant.key not in engine.grants]  # calls have passed since
        for grant in part:
            engine.adopt(grant)
        yield tuple(_with_pod(engine, grant) for grant in part)
    # 2. What runs elsewhere than its record says is where it runs.
    for items in _parts([item for item in live if is_outdated(engine, item)]):
        outdated = [item for item in items if is_outdated(engine, item)]
        for item in outdated:
            engine.adopt(adoption(item, engine.grants[item.id].container, _owned(engine, {item.id})))
        yield tuple(item.id for item in outdated)
    for update in engine.lacking():
        if update.id in seen and seen[update.id].cpus == engine.grants[update.id].cpus:
            engine.saw(update.id, **told_by(engine.grants[update.id], engine.told[update.id])._asdict())


def _with_pod(engine: Engine, grant: ContainerRecord) -> str:
    """The id of a container whose pod is known from now on."""
    if grant.container.pod.id not in engine.pods:
        engine.add_pod(grant.container.pod)
    return grant.key


def _parts(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    for start in range(0, len(items), SLICE):
        yield items[start : start + SLICE]


def _made_otherwise(engine: Engine, live: Iterable[ListedContainer]) -> dict[str, Container]:
    """Containers by id whose creates are in doubt, and which run elsewhere than those asked for."""
    by_name = {(item.pod_uid, item.name, item.attempt): item for item in live}
    found = {}
    for ticket in engine.tickets.values():
        grant = engine.grants[ticket.key]
        item = by_name.get(_name(grant))
        is_create = ticket.kind is TicketKind.CREATE and ticket.in_doubt
        if is_create and item is not None and item.cpus and item.cpus != grant.placement.cpus:
            found[item.id] = grant.container
    return found


def _name(grant: ContainerRecord) -> tuple[str, str, int]:
    container = grant.container
    return container.pod.uid, container.name, container.attempt


def is_outdated(engine: Engine, item: ListedContainer) -> bool:
    """Whether a container runs elsewhere than its record says; one whose processes are elsewhere tells nothing."""
    grant, online = engine.grants.get(item.id), engine.host.topology.online
    if grant is None or grant.stance is not Management.PLACED or grant.life is Life.HELD:
        return False
    if item.exited or not item.cpus or item.runs_in:
        return False
    return item.cpus & online != grant.placement.cpus & online


def _gone(
    engine: Engine, seen: Mapping[str, ListedContainer], unknown: Iterable[ListedContainer],
    details: Mapping[str, Container], listed_at_s: float
) -> tuple[list[str], list[Ticket]]:  # fmt: skip
    """Records of what is not there any more, and requests that must have ended: what they own would be in the way."""
    newest = {(item.pod_uid, item.name): item.attempt for item in unknown}
    made = {(item.pod_uid, item.name, item.attempt) for item in unknown}
    tickets = [
        t
        for t in engine.tickets.values()
        if t.in_doubt and (_name(engine.grants[t.key]) in made or _has_ended(engine, t, seen, newest))
    ]
    gone = [
        grant.key
        for grant in engine.grants.values()
        if grant.is_made
        and (_is_earlier(grant, newest, seen) or (grant.key not in seen and grant.since_s < listed_at_s))
    ]
    return gone, tickets


def _is_earlier(
    grant: ContainerRecord, newest: Mapping[tuple[str, str], int], seen: Mapping[str, ListedContainer]
) -> bool:
    """Whether a place is held for a next attempt that is there by now."""
    name = (grant.container.pod.uid, grant.container.name)
    is_over = grant.key not in seen or seen[grant.key].exited
    return is_over and grant.container.attempt < newest.get(name, -1)


def _has_ended(
    engine: Engine, ticket: Ticket, seen: Mapping[str, ListedContainer], newest: Mapping[tuple[str, str], int]
) -> bool:
    """A request whose container has a later attempt, is being resized elsewhere, or owns what others run on by now."""
    grant = engine.grants[ticket.key]
    if ticket.kind is TicketKind.RESIZE:
        return ticket.target not in seen or is_outdated(engine, seen[ticket.target])
    if _is_earlier(grant, newest, {}):
        return True
    if any((item.pod_uid, item.name, item.attempt) == _name(grant) for item in seen.values()):
        return False
    return any(not grant.exclusive.isdisjoint(item.cpus or NO_CPUS) for item in _placed(engine, seen))


def _placed(engine: Engine, seen: Mapping[str, ListedContainer]) -> Iterator[ListedContainer]:
    for item in seen.values():
        grant = engine.grants.get(item.id)
        if grant is not None and grant.stance is Management.PLACED and not item.exited:
            yield item


def _owned(engine: Engine, but: Iterable[str]) -> frozenset[int]:
    """What containers own, without some."""
    left = set(but)
    return NO_CPUS.union(*(g.exclusive for g in engine.grants.values() if g.key not in left))


# ---------------------------------------------------------------------- containers that come unannounced

# For a front end that sees no requests. What a proxy does in two steps around a call (admit, bind) is one here: the
# container is there already, and nothing can come between.


@frozen
class UnannouncedContainer:
    """A container that no call announced. ``constraint``: the cpuset and mems it was created with; ``cpus``, ``mems``:
    those it has now, None = not known. ``started_at_ns``: Unix time, 0 = not known. Not running: created only."""

    id: str
    container: Container
    constraint: Constraint = NO_CONSTRAINT
    uses: tuple[Use, ...] = ()
    cpus: Optional[frozenset[int]] = None
    mems: Optional[frozenset[int]] = None
    started_at_ns: int = 0
    is_running: bool = True


def leave_untouched(engine: Engine, unannounced: UnannouncedContainer, now_s: float, why: str) -> None:
    """Know a container that could not be placed. It is there already: a refusal would reach no caller."""
    runs_on = unannounced.cpus or engine.host.parent_cpus or engine.host.usable
    grant = ContainerRecord(
        key=unannounced.id,
        container=unannounced.container,
        placement=Placement(),
        stance=Management.UNTOUCHED,
        constraint=unannounced.constraint,
        life=Life.RUNNING if unannounced.is_running else Life.CREATED,
        runs_on=runs_on,
        runs_on_mems=unannounced.mems or NO_CPUS,
        since_s=now_s,
        why=why,
    )
    engine.adopt(grant)


def in_order(containers: Iterable[UnannouncedContainer]) -> list[UnannouncedContainer]:
    """As they were started."""
    return sorted(containers, key=lambda each: (each.started_at_ns, each.id))
