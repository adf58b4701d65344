"""The configuration is what the files say; while they say nonsense, the last that loaded; else the defaults."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from cri_proxy.config.config import BadConfig, SettingsSource, view_socket
from cri_proxy.config.io.files import (
    ENDPOINTS,
    LAST,
    MAX_BYTES,
    ConfigInForce,
    Files,
    keep,
    load,
    load_or_last,
    reload_problem,
)

SOCKET = "relay.socket"
BAD = "policy:\n  Active: sideways\n"


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """A file that says nothing, in place of what may be in /etc."""
    path = tmp_path / "empty.cfg"
    path.write_text("")
    return path


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def files_of(folder: Path, empty: Path, text: str) -> Files:
    """A configuration that keeps its state in the folder."""
    state = f"state.directory: {folder / 'state'}\n"
    return Files(empty, write(folder / "config.yaml", state + text))


# ---------------------------------------------------------------------- the order of files


@pytest.mark.parametrize(
    ("named", "order"),
    [
        ("fallback", ["TEXT", "config", "force", "command line"]),
        ("config", ["fallback", "TEXT", "force", "command line"]),
        ("force", ["fallback", "config", "TEXT", "command line"]),
        ("other", ["fallback", "TEXT", "force", "command line"]),
    ],
)
def test_a_text_on_trial_takes_the_place_of_its_file_or_else_of_config_yaml(named, order, tmp_path) -> None:
    paths = {name: write(tmp_path / name, "{}") for name in ("fallback", "config", "force", "other")}
    files = Files(paths["fallback"], paths["config"], paths["force"], {"relay.mode": "off"})
    _, *found = files.layers_with(SettingsSource(str(paths[named]), "TEXT")).with_policy(None)
    assert [s.text if s.text == "TEXT" else s.name.rsplit("/", 1)[-1] for s in found] == order


def test_a_text_on_trial_comes_before_what_is_forced(tmp_path, empty) -> None:
    forced = write(tmp_path / "forced", "{}")
    layers = Files(empty, None, forced).layers_with(SettingsSource("/nowhere/x.yaml", "TEXT"))
    _, *found = layers.with_policy(None)
    assert [source.text for source in found] == ["", "TEXT", "{}"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("fallback",), "/run/fallback.sock"),
        (("fallback", "config"), "/run/config.sock"),
        (("fallback", "config", "force"), "/run/force.sock"),
        (("fallback", "force"), "/run/force.sock"),
        (("fallback", "config", "force", "line"), "/run/line.sock"),
    ],
)
def test_the_later_file_wins_and_the_command_line_over_all(given, expected, tmp_path, empty) -> None:
    paths = {
        name: write(tmp_path / f"{name}.yaml", f"{SOCKET}: /run/{name}.sock\n") if name in given else None
        for name in ("fallback", "config", "force")
    }
    overrides = {SOCKET: "/run/line.sock"} if "line" in given else {}
    files = Files(paths["fallback"], paths["config"] or empty, paths["force"], overrides)
    settings = load(files)
    assert settings.config[SOCKET] == expected
    assert (settings.problem, settings.is_default) == ("", False)


def test_what_a_later_file_leaves_out_stays(tmp_path) -> None:
    first = write(tmp_path / "a.yaml", f"{SOCKET}: /run/a.sock\ncontrol.socket: /run/c.sock\n")
    second = write(tmp_path / "b.yaml", f"{SOCKET}: /run/b.sock\n")
    config = load(Files(first, second)).config
    assert (config[SOCKET], config["control.socket"]) == ("/run/b.sock", "/run/c.sock")


@pytest.mark.parametrize("what", ["missing", "a folder", "not UTF-8"])
def test_a_named_file_that_cannot_be_read_is_an_error(what, tmp_path, empty) -> None:
    path = tmp_path / "config.yaml"
    if what == "a folder":
        path.mkdir()
    elif what == "not UTF-8":
        path.write_bytes(b"\xff\xfe")
    with pytest.raises(BadConfig) as caught:
        load(Files(empty, path))
    assert caught.value.errors[0].startswith(f"{path}: cannot be read: ")


def test_usual_places_where_nothing_is_are_passed_over(tmp_path) -> None:
    _, *found = Files(root=tmp_path).layers().below
    (tmp_path / "etc").write_text("not a folder")
    _, *as_without = Files(root=tmp_path).layers().below
    assert found == as_without == []


def test_below_another_root_lies_all_that_is_ours_and_nothing_sets(tmp_path, empty, monkeypatch) -> None:
    monkeypatch.setenv("CRI_RESMGR_ROOT", str(tmp_path))
    text = write(tmp_path / "config.yaml", "control.socket: /run/c.sock\n")
    for settings in (
        load(Files(empty, text)),
        load_or_last(Files(empty, text, write(tmp_path / "bad", BAD))),
    ):
        config = settings.config
        assert config["control.socket"] == "/run/c.sock"
        assert config["relay.extra_sockets"] == (f"{tmp_path}/var/run/cri-resmgr/cri-resmgr.sock",)
        ours = {key: value for key, value, _ in config.show() if "/cri-resmgr" in str(value)}
        assert view_socket(config) == Path("/run/view/view.sock")
        assert len(ours) == 5, ours
        assert all(str(value).lstrip("[").startswith(f"{tmp_path}/var/") for value in ours.values())
    monkeypatch.setenv("CRI_RESMGR_ROOT", "/")
    assert [source.name for source in Files(empty, text).layers().below] == [str(empty), str(text)]


def test_a_usual_place_that_may_not_be_looked_at_is_an_error_and_not_an_empty_one(tmp_path) -> None:
    # Root may look everywhere, so this stands for a folder that may not be searched.
    root = tmp_path / ("x" * 300)
    with pytest.raises(BadConfig) as caught:
        load(Files(root=root))
    assert caught.value.errors == (f"{root}/etc/cri-resmgr/fallback.cfg: cannot be read: File name too long",)
    assert load_or_last(Files(root=root, overrides={"state.directory": str(tmp_path)})).is_default


# ---------------------------------------------------------------------- the last that loaded


def test_a_broken_file_leaves_the_last_configuration_in_force(tmp_path, empty) -> None:
    files = files_of(tmp_path, empty, f"{SOCKET}: /run/good.sock\npolicy.Active: none\n")
    assert keep(load_or_last(files), tmp_path / "state", "/run/theirs.sock") is None
    broken = files_of(tmp_path, empty, BAD)
    settings = load_or_last(broken)
    assert (settings.config[SOCKET], settings.config["policy.Active"]) == ("/run/good.sock", "none")
    assert settings.problem.startswith("the last configuration that loaded is in force: ")
    assert "sideways" in settings.problem
    assert not settings.is_default


def test_the_command_line_of_now_counts_over_the_last_configuration(tmp_path, empty) -> None:
    files = files_of(tmp_path, empty, f"{SOCKET}: /run/good.sock\n")
    keep(load(files), tmp_path / "state", "")
    broken = files_of(tmp_path, empty, BAD)
    settings = load_or_last(Files(broken.fallback, broken.config, None, {SOCKET: "/run/line.sock"}))
    assert settings.config[SOCKET] == "/run/line.sock"


@pytest.mark.parametrize(
    "kept", [None, "", "{", "7", "[7]", '[["a"]]', json.dumps([["c.yaml", BAD]])], ids=repr
)
def test_without_a_last_configuration_the_essentials_are_believed(kept, tmp_path, empty) -> None:
    (tmp_path / "state").mkdir()
    if kept is not None:
        (tmp_path / "state" / LAST).write_text(kept)
    settings = load_or_last(files_of(tmp_path, empty, f"{SOCKET}: /run/good.sock\n{BAD}"))
    assert settings.is_default
    assert settings.problem.startswith("containers are not placed until there is a valid configuration: ")
    assert settings.config[SOCKET] == "/run/good.sock"


def test_an_essential_that_is_invalid_itself_is_not_believed(tmp_path, empty) -> None:
    text = f"{SOCKET}: not/absolute\ncontrol.socket: /run/c.sock\n"
    settings = load_or_last(files_of(tmp_path, empty, text))
    default = load(Files(empty, empty)).config[SOCKET]
    assert (settings.config[SOCKET], settings.config["control.socket"]) == (default, "/run/c.sock")


def test_several_errors_are_counted_in_one_sentence() -> None:
    sentence = reload_problem(BadConfig(["first", "second", "third"]), is_default=False)
    assert sentence == "the running configuration stays: first (and 2 more; see: cri-resmgr config check)"


# ---------------------------------------------------------------------- what is kept


@pytest.mark.parametrize(
    ("text", "runtime"),
    [("", "/run/detected.sock"), ("relay.runtime_endpoint: /run/told.sock\n", "/run/told.sock")],
    ids=["detected", "configured"],
)
def test_the_endpoints_are_kept_for_the_launcher(text, runtime, tmp_path, empty) -> None:
    extra = f"{SOCKET}: /run/a.sock\nrelay.extra_sockets: [/run/b.sock]\n"
    settings = load(files_of(tmp_path, empty, extra + text))
    assert keep(settings, tmp_path / "state", "/run/detected.sock") is None
    assert json.loads((tmp_path / "state" / ENDPOINTS).read_text()) == {
        "socket": "/run/a.sock",
        "extra_sockets": ["/run/b.sock"],
        "runtime": runtime,
    }
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == sorted([LAST, ENDPOINTS])


def test_the_texts_of_the_files_are_kept_but_not_the_command_line(tmp_path, empty) -> None:
    files = files_of(tmp_path, empty, "")
    settings: ConfigInForce = load(Files(files.fallback, files.config, None, {SOCKET: "/run/line.sock"}))
    keep(settings, tmp_path / "state", "")
    kept = json.loads((tmp_path / "state" / LAST).read_text())
    assert [name for name, _ in kept] == [str(empty), str(files.config)]


def test_a_folder_that_cannot_be_had_is_a_sentence(tmp_path, empty) -> None:
    in_the_way = write(tmp_path / "state", "a file")
    sentence = keep(load(Files(empty, empty)), in_the_way, "")
    assert sentence is not None
    assert sentence.startswith(f"{in_the_way}: the configuration could not be kept for a start without one: ")


# ---------------------------------------------------------------------- files that are none, and disks that hang


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("fifo", "it is a FIFO, expected a regular file"),
        ("device", "it is a device, expected a regular file"),
        ("folder", "it is a directory, expected a regular file"),
        ("large", f"it is larger than {MAX_BYTES} bytes"),
    ],
)
def test_what_is_no_file_of_a_configurations_size_is_not_read(kind, reason, empty, tmp_path) -> None:
    path = tmp_path / "config.yaml"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        with path.open("wb") as file:
            file.truncate(1 << 40)
    with pytest.raises(BadConfig, match=reason):
        load(Files(empty, path))
    assert load_or_last(Files(empty, path)).is_default


def test_a_file_may_be_a_link_to_a_link_as_in_a_config_map(empty, tmp_path) -> None:
    (tmp_path / "..2026").mkdir()
    write(tmp_path / "..2026/config.yaml", "log.level: debug\n")
    (tmp_path / "..data").symlink_to("..2026")
    (tmp_path / "config.yaml").symlink_to("..data/config.yaml")
    assert load(Files(empty, tmp_path / "config.yaml")).config["log.level"] == "debug"


def test_a_disk_that_does_not_answer_is_a_configuration_that_cannot_be_read(empty, monkeypatch) -> None:
    answers = threading.Event()
    monkeypatch.setattr("cri_proxy.config.io.files.ANSWER_S", 0.05)

    def hang() -> list[SettingsSource]:
        answers.wait()
        return []

    try:
        found = load_or_last(Files(empty, empty, told=hang))
        assert "the disk has not answered" in found.problem
        assert found.is_default
    finally:
        answers.set()
