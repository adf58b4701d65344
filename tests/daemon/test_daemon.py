"""What the daemon and its commands do with one another's parts: a configuration that is taken over, answers that wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import pytest

from cri_api.control import ControlError
from cri_proxy.config.cluster_policy import BadPolicy
from cri_proxy.config.config import Config, read_config
from cri_proxy.config.io import files as settings
from cri_proxy.config.io.cluster_policy_file import NOTHING
from cri_proxy.daemon import commands
from cri_proxy.daemon.cluster_layer import ClusterLayer
from cri_proxy.daemon.commands import Commands, graph_document
from cri_proxy.daemon.daemon import Daemon
from cri_proxy.daemon.engine_host import COMMAND, NODE_PLACEMENT
from cri_proxy.daemon.first_mode import FirstMode
from cri_proxy.daemon.proxy import Proxy, RefusingImages
from cri_proxy.relay.interception import CallEnd, Refuse
from cri_proxy.relay.status import Code
from cri_proxy.text.sources import SettingsSource
from policies.model import PlacementRefused
from tests.daemon.parts import parts
from tests.scenes import make_container, run


class Parts:
    """Stands in for a daemon: what it asks its parts to do, in order."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[Any] = []
        self.services = parts(folder, monkeypatch)
        self.services.store.settled = self.doing("settled")  # type: ignore[method-assign]
        self.log, self.health, self.mode = self.services.log, self.services.health, "enforce"
        self.front = self._front = SimpleNamespace(reconfigured=self.done_now("front"))
        self.affinity = SimpleNamespace(reconfigured=self.done_now("affinity"))
        self.sizer = SimpleNamespace(reconfigured=self.done_now("sizer"))
        self.isolation = SimpleNamespace(
            reconfigured=self.done_now("isolation"), release=self.doing("isolation released")
        )
        self.monitoring = SimpleNamespace(
            reconfigured=self.done_now("monitoring"), release=self.doing("monitoring released")
        )
        self.claims = SimpleNamespace(told=self.done_now("claims"))
        self.assembly = SimpleNamespace(
            activate=self._activate,
            configured_mode=self.done_now("mode"),
            follow_config=self.doing("follow"),
            set_mode=lambda mode, by: self.done.append((mode, by)),
        )
        self.cluster = SimpleNamespace(loaded=lambda loaded: self.done.append("cluster"))
        self._serve_metrics, self._keep = self.doing("metrics"), self.doing("keep")
        self._apply_settings = self.done_now("settings")
        self._loaded: Any = SimpleNamespace(cluster=NOTHING)
        self._unconfigured, self._first, self._own = True, FirstMode("enforce"), lambda: True

    async def _activate(self) -> bool:
        self.done.append("up")
        return True

    def done_now(self, name: str) -> Any:
        return lambda *_: self.done.append(name)

    def doing(self, name: str) -> Any:
        async def do(*_: object) -> None:
            await asyncio.sleep(0)
            self.done.append(name)

        return do


@pytest.fixture
async def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return Parts(tmp_path, monkeypatch)


# ---------------------------------------------------------------------- a configuration


def config(**values: Any) -> Config:
    return read_config([SettingsSource("test", values=values)]).config


def loaded(made: Config, **more: Any) -> Any:
    values = {"warnings": (), "problem": "", "cluster": NOTHING, **more}
    return SimpleNamespace(config=made, **values)


@pytest.mark.parametrize("has_engine", [True, False])
@pytest.mark.parametrize(
    ("values", "more"),
    [
        ({}, []),
        ({"relay": {"mode": "observe"}}, ["mode"]),
        ({"metrics": {"listen": "127.0.0.1:1"}}, ["metrics"]),
    ],
    ids=repr,
)
async def test_a_configuration_is_followed_by_all_that_go_by_it(daemon, values, more, has_engine) -> None:
    if not has_engine:
        daemon.services.node_state.engine = None
    old = daemon.services.config
    daemon.services.look.clear()
    await Daemon.take_over(daemon, loaded(config(**values)))
    follow = ["follow"] if has_engine else []
    assert daemon.done == [
        "cluster", "settings", *more, *follow, "keep", "affinity", "sizer", "isolation", "monitoring", "claims",
        "front", "settled",
    ]  # fmt: skip
    assert daemon.services.look.is_set() and not daemon._unconfigured
    # What needs a restart stays as it was.
    assert daemon.services.config["state.directory"] == old["state.directory"] != config()["state.directory"]
    assert "state.directory" in daemon.health.reasons["restart"]


async def test_what_a_configuration_says_of_itself_is_told(daemon) -> None:
    of_cluster = SimpleNamespace(problem="not this one")
    made = daemon.services.config
    await Daemon.take_over(daemon, loaded(made, warnings=("look",), problem="odd", cluster=of_cluster))
    assert daemon.health.reasons == {"config": "odd"}
    assert daemon.health.warnings == ["look", "not this one"]
    await Daemon.take_over(daemon, loaded(made))
    assert not daemon.health.reasons and not daemon.health.warnings


@pytest.mark.parametrize("text", ["", "affinity:\n", "placement: {ladder: rope}"], ids=repr)
async def test_a_file_that_is_being_written_is_not_a_configuration_yet(
    daemon, monkeypatch, tmp_path, text
) -> None:
    whole = "placement: {ladder: fine}"
    path = tmp_path / "config.yaml"
    path.write_text(text)
    read = settings.load

    def load(files: settings.Files) -> settings.ConfigInForce:
        try:
            return read(files)
        finally:
            path.write_text(whole)

    async def take_over(found: settings.ConfigInForce) -> None:
        daemon.done.append([source.text for source in found.sources if source.name == str(path)])

    daemon.take_over = take_over
    daemon.options = SimpleNamespace(files=settings.Files(config=path))
    daemon._is_whole = lambda found: Daemon._is_whole(daemon, found)
    monkeypatch.setattr(settings, "load", load)
    assert not await Daemon._bring_up(daemon)
    assert daemon.done == []
    assert await Daemon._bring_up(daemon)
    assert daemon.done == [[whole], "up", "keep"]


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (asyncio.TimeoutError(), "the disk does not answer"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (OSError("odd"), "odd"),
    ],
)
async def test_a_policy_that_cannot_be_kept_is_not_put_in_force(daemon, monkeypatch, error, sentence) -> None:
    async def keep(*_: object) -> None:
        raise error

    async def take_over(found: Any) -> None:
        daemon.done.append("taken over")

    daemon.take_over = take_over
    layer = ClusterLayer(daemon)
    monkeypatch.setattr(layer._file, "keep", keep)
    with pytest.raises(BadPolicy) as raised:
        await layer._follow(loaded(config()))
    folder = daemon.services.config["state.directory"]
    assert str(raised.value) == f"{folder}: the policy cannot be kept over a restart: {sentence}"
    assert not daemon.done


async def test_a_policy_is_kept_before_it_counts(daemon, monkeypatch) -> None:
    daemon.take_over = daemon.doing("taken over")
    layer = ClusterLayer(daemon)
    monkeypatch.setattr(layer._file, "keep", daemon.doing("kept"))
    answer = await layer._follow(loaded(config(relay={"mode": "observe"})))
    assert daemon.done == ["kept", "taken over"]
    assert answer["state"] == "none" and "relay.mode" in answer["changed"]


# ---------------------------------------------------------------------- commands


@pytest.mark.parametrize(
    ("arguments", "done"),
    [
        ({}, []),
        ({"mode": "observe"}, [("observe", COMMAND), "settled"]),
        ({"mode": "off", "by": NODE_PLACEMENT}, [("off", NODE_PLACEMENT), "settled"]),
        ({"mode": "", "by": NODE_PLACEMENT}, [("", NODE_PLACEMENT), "settled"]),
        ({"mode": "observe", "by": "another"}, [("observe", COMMAND), "settled"]),
    ],
    ids=repr,
)
async def test_a_mode_is_kept_when_its_command_is_over(daemon, arguments, done) -> None:
    assert await Commands(daemon).mode(arguments) == {"mode": "enforce", "wanted": "enforce"}
    assert daemon.done == done


@pytest.mark.parametrize(
    "arguments", [{"mode": ""}, {"mode": "on"}, {"mode": "on", "by": NODE_PLACEMENT}], ids=repr
)
async def test_a_mode_that_is_none_changes_nothing(daemon, arguments) -> None:
    with pytest.raises(ControlError, match="is not a mode; modes are enforce, observe, off"):
        await Commands(daemon).mode(arguments)
    assert not daemon.done


@pytest.fixture
def asked(daemon: Any, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Commands with two containers, of which one is managed; the runtime takes all that it is told at once."""
    engine = daemon.services.node_state.engine
    for key in ("a", "b"):
        run(engine, make_container(key, 2), key)
    engine.release("b")

    async def compared(*_: object, **__: object) -> None:
        daemon.done.append("compared")

    async def saved() -> None:
        daemon.done.append("saved")

    async def tried(ids: Any, seconds: float) -> None:
        daemon.done.append(("tried", list(ids)))

    daemon.services.reconciler.run = compared
    daemon.services.runtime.api = "runtime.v1"
    daemon.services.node_state.saved = saved
    daemon.services.node_state.updates.tried = tried
    return Commands(daemon)


async def test_one_is_adopted_by_its_name_after_what_runs_was_compared(daemon, asked) -> None:
    answer = await asked.adopt({"container": "default/pod-of-b/b"})
    assert answer["containers"] == 1 and [type(each).__name__ for each in daemon.done] == [
        "str",
        "str",
        "tuple",
    ]
    assert daemon.done[:2] == ["compared", "saved"]
    assert daemon.services.node_state.engine.grants["b"].stance.value == "placed"


async def test_what_is_managed_is_not_adopted(daemon, asked) -> None:
    with pytest.raises(ControlError, match="default/pod-of-a/a is managed already"):
        await asked.adopt({"container": "default/pod-of-a/a"})
    assert "saved" not in daemon.done


async def test_what_cannot_be_placed_stays_as_it_is(daemon, asked, monkeypatch) -> None:
    def manage(key: str) -> bool:
        raise PlacementRefused("no room")

    monkeypatch.setattr(daemon.services.node_state.engine, "manage", manage)
    with pytest.raises(ControlError, match="pod-of-b/b cannot be placed, and stays as it is: no room; see: "):
        await asked.adopt({"container": "default/pod-of-b/b"})
    monkeypatch.setattr(daemon.services.node_state.engine, "manage", lambda key: False)
    with pytest.raises(ControlError, match="pod-of-b/b cannot be placed: "):
        await asked.adopt({"container": "default/pod-of-b/b"})
    assert "saved" not in daemon.done


@pytest.mark.parametrize("mode", ["observe", "off"])
async def test_nothing_is_adopted_where_nothing_is_placed(daemon, asked, mode) -> None:
    daemon.mode = mode
    for command, arguments in ((asked.adopt, {"all": True}), (asked.reset_policy, {"replace": True})):
        with pytest.raises(
            ControlError, match=f"in mode {mode} nothing is placed; first: cri-resmgr mode enforce"
        ):
            await command(arguments)
    assert not daemon.done


async def test_all_that_was_released_is_adopted_and_the_answer_says_how_many(daemon, asked) -> None:
    answer = await asked.adopt({"all": True})
    assert (answer["containers"], answer["left"]) == (1, [])


@pytest.mark.parametrize("api", ["runtime.v1", ""])
async def test_while_the_runtime_is_away_what_runs_must_be_known(daemon, asked, api) -> None:
    daemon.services.runtime.api = api
    daemon.services.node_state.books.why = "it was said"
    if api:
        await asked._look()
        return
    with pytest.raises(ControlError, match="it is not known yet which CPUs are owned: it was said"):
        await asked._look()
    daemon.services.node_state.books.why = ""
    await asked._look()
    assert "compared" not in daemon.done


async def test_the_heaviest_traffic_is_told_first(daemon, monkeypatch) -> None:
    monkeypatch.setattr(commands, "edge_rows", lambda engine, edges: [{"weight": e.weight} for e in edges])
    monkeypatch.setattr(commands, "groups_of", lambda edges: [])
    monkeypatch.setattr(commands, "owner_rows", lambda traffic: [])
    monkeypatch.setattr(commands, "nearness_rows", lambda rows: [])
    monkeypatch.setattr(commands, "EDGES_AT_ONCE", 2)
    traffic: Any = SimpleNamespace(version=7, listed=[SimpleNamespace(weight=w) for w in (1, 5, 3)])
    document = await graph_document(daemon.services.node_state.engine, traffic)
    assert [row["weight"] for row in document["edges"]] == [5, 3, 1] and document["version"] == 7


# ---------------------------------------------------------------------- the proxy


async def test_a_socket_that_cannot_be_served_is_a_reason_and_the_others_are_served(
    folder, monkeypatch
) -> None:
    (folder / "file").touch()
    taken = folder / "file" / "x.sock"
    relay = {"socket": str(folder / "p.sock"), "extra_sockets": [str(taken)]}
    services = parts(folder, monkeypatch, relay=relay)
    proxy = Proxy(services)
    await proxy.open()
    try:
        assert list(services.health.reasons) == [f"socket {taken}"]
        assert services.health.reasons[f"socket {taken}"].startswith(f"{taken} is not served: ")
        assert proxy.status()["sockets"] == [str(folder / "p.sock")]
    finally:
        await proxy.close(0.0, 0.0)
        await services.supervisor.end()


class Decides:
    opened: Optional[str] = None

    def open(self, full_method: str) -> None:
        self.opened = full_method


@pytest.mark.parametrize("service", ["runtime.v1.ImageService", "runtime.v1alpha2.ImageService"])
async def test_calls_of_an_image_service_elsewhere_are_refused_with_the_sentence(service) -> None:
    decides: Any = Decides()
    refusing = RefusingImages(decides, "it is elsewhere")
    call: Any = refusing.open(f"/{service}/PullImage")
    assert await call.request(b"") == Refuse(
        Code.FAILED_PRECONDITION, f"{service}/PullImage is not relayed: it is elsewhere"
    )
    ended: list[Awaitable[None]] = [call.replied(b""), call.ended(CallEnd.REFUSED, 9, "")]
    for each in ended:
        await each
    assert decides.opened is None
    for method in ("/runtime.v1.RuntimeService/Version", "/other.ImageService/PullImage"):
        assert refusing.open(method) is None and decides.opened == method
