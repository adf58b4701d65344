"""Kubelet's files on a disk: found under a root, written as a whole, with everything they had but the one value."""

from __future__ import annotations

import os
import stat
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from cri_proxy.kubelet.io.files import CannotWrite, KubeletFiles, replace_file
from cri_proxy.kubelet.record import SwitchRecord
from cri_proxy.kubelet.settings import BadKubeletFile, survey
from cri_proxy.kubelet.switch import Edit, by_hand, plan_disable, plan_enable
from tests.kubelet_trees import RANCHER, TREES, UNIT

ALL = {**TREES, **RANCHER}
US = "unix:///var/run/cri-resmgr.sock"
SOCKETS = ("/var/run/cri-resmgr.sock",)
STATE = Path("/var/lib/cri-resmgr")


def write_tree(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode())


def read_tree(root: Path) -> dict[str, bytes]:
    state = root / str(STATE).lstrip("/")
    files = [path for path in root.rglob("*") if path.is_file() and state not in path.parents]
    return {f"/{path.relative_to(root)}": path.read_bytes() for path in files}


def switch(files: KubeletFiles) -> list[Edit]:
    """What enable does to the files."""
    texts = files.read()
    setup = survey(texts)
    edits = plan_enable(setup, texts, US, SOCKETS)
    files.save(SwitchRecord(US, setup.endpoint, tuple(edit.change for edit in edits), 1.0), edits)
    files.write(edits)
    return edits


@pytest.mark.parametrize("name", ALL)
def test_the_files_of_a_host_are_found_under_a_root(tmp_path: Path, name: str) -> None:
    write_tree(tmp_path, ALL[name].files)
    setup = survey(KubeletFiles(tmp_path, STATE).read())
    place = setup.winner.place if setup.winner and setup.winner.text else "default"
    assert (setup.endpoint, place) == (ALL[name].endpoint, ALL[name].place)


@pytest.mark.parametrize("name", TREES)
def test_there_and_back_leaves_the_same_bytes_on_disk(tmp_path: Path, name: str) -> None:
    write_tree(tmp_path, TREES[name].files)
    before = read_tree(tmp_path)
    files = KubeletFiles(tmp_path, STATE)
    switch(files)
    assert read_tree(tmp_path) != before
    record = files.load()
    assert record is not None
    files.write(plan_disable(record, files.read(more=record.paths), files.backups(record)).edits)
    files.forget()
    assert read_tree(tmp_path) == before
    assert files.load() is None


@pytest.mark.parametrize("name", [name for name in ALL if ALL[name].place != "default"])
def test_what_is_said_to_be_typed_by_hand_does_it(tmp_path: Path, name: str) -> None:
    write_tree(tmp_path, ALL[name].files)
    setup = survey(KubeletFiles(tmp_path, STATE).read())
    typed = by_hand(setup, US).split(" && ")[0]
    path = ALL[name].place.rpartition(":")[0]
    subprocess.run(typed.replace(f" {path}", f" {tmp_path}{path}"), shell=True, check=True)
    assert survey(KubeletFiles(tmp_path, STATE).read()).endpoint == US


def test_of_two_equal_values_on_a_line_the_one_that_is_meant_is_typed_by_hand(tmp_path: Path) -> None:
    flags = f"--image-service-endpoint={US} --container-runtime-endpoint={US}"
    write_tree(tmp_path, {UNIT: f"[Service]\nExecStart=/usr/bin/kubelet {flags}\n"})
    for name, value in (("runtime", None), ("image", survey(KubeletFiles(tmp_path, STATE).read()).images_at)):
        typed = by_hand(survey(KubeletFiles(tmp_path, STATE).read()), f"unix:///run/{name}.sock", value)
        subprocess.run(typed.split(" && ")[0].replace(UNIT, f"{tmp_path}{UNIT}"), shell=True, check=True)
    setup = survey(KubeletFiles(tmp_path, STATE).read())
    assert (setup.endpoint, setup.images) == ("unix:///run/runtime.sock", "unix:///run/image.sock")


def test_a_file_that_somebody_has_just_changed_stays_as_it_is(tmp_path: Path) -> None:
    write_tree(tmp_path, {"/a": "old", "/b": "newer"})
    with pytest.raises(CannotWrite, match="^/b cannot be written: another program has just changed it"):
        KubeletFiles(tmp_path, STATE).write([Edit("/a", "old", "new"), Edit("/b", "old", "new")])
    assert read_tree(tmp_path) == {"/a": b"old", "/b": b"newer"}


def test_files_given_back_are_remembered_until_kubelet_has_read_them(tmp_path: Path) -> None:
    write_tree(tmp_path, TREES["kubeadm, flags file"].files)
    before = read_tree(tmp_path)
    files = KubeletFiles(tmp_path, STATE)
    switch(files)
    record = files.load()
    assert record is not None and record.undone_at is None
    edits = plan_disable(record, files.read(more=record.paths), files.backups(record)).edits
    files.give_back(record, edits, 2.0)
    assert (read_tree(tmp_path), files.load()) == (before, replace(record, undone_at=2.0))


def test_files_that_cannot_be_given_back_are_not_said_to_be(tmp_path: Path) -> None:
    write_tree(tmp_path, TREES["kubeadm, flags file"].files)
    files = KubeletFiles(tmp_path, STATE)
    [edit] = switch(files)
    record = files.load()
    with pytest.raises(CannotWrite, match="another program has just changed it"):
        files.give_back(record, [replace(edit, before="another")], 2.0)
    assert files.load() == record


def test_files_are_given_back_without_a_place_to_remember_it(tmp_path: Path) -> None:
    write_tree(tmp_path, {"/a": "ours"})
    files = KubeletFiles(tmp_path, STATE)
    write_tree(tmp_path, {f"{STATE}/kubelet": "a file where a folder should be"})
    files.give_back(SwitchRecord(US, "", (), 1.0), [Edit("/a", "ours", "theirs")], 2.0)
    assert (tmp_path / "a").read_text() == "theirs"


def test_owner_mode_and_labels_stay(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"old")
    file.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(file, 12, 34)
    labels = has_labels(file)
    replace_file(file, b"new")
    status = file.stat()
    assert (file.read_bytes(), stat.S_IMODE(status.st_mode)) == (b"new", 0o640)
    assert (status.st_uid, status.st_gid) == ((12, 34) if os.geteuid() == 0 else (os.geteuid(), os.getegid()))
    assert not labels or os.getxattr(file, "user.label") == b"x"
    assert list(tmp_path.iterdir()) == [file]


def has_labels(file: Path) -> bool:
    try:
        os.setxattr(file, "user.label", b"x")
    except OSError:
        return False
    return True


def test_copies_are_for_root_only(tmp_path: Path) -> None:
    write_tree(tmp_path, TREES["kubeadm, flags file"].files)
    files = KubeletFiles(tmp_path, STATE)
    switch(files)
    assert stat.S_IMODE(files.folder.stat().st_mode) == 0o700
    modes = {stat.S_IMODE(path.stat().st_mode) for path in files.folder.iterdir()}
    assert modes == {0o600}
    assert len(list(files.folder.iterdir())) == 2


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    write_tree(tmp_path, TREES["kubeadm, flags file"].files)
    flags = tmp_path / "var/lib/kubelet/kubeadm-flags.env"
    flags.rename(tmp_path / "real.env")
    flags.symlink_to("../../../real.env")
    switch(KubeletFiles(tmp_path, STATE))
    assert flags.is_symlink()
    assert US in (tmp_path / "real.env").read_text()


def test_a_link_out_of_the_root_is_not_followed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write_tree(root, TREES["kubeadm, flags file"].files)
    flags = root / "var/lib/kubelet/kubeadm-flags.env"
    flags.rename(tmp_path / "outside.env")
    flags.symlink_to(tmp_path / "outside.env")
    before = (tmp_path / "outside.env").read_bytes()
    with pytest.raises(CannotWrite, match="leads out of"):
        switch(KubeletFiles(root, STATE))
    assert (tmp_path / "outside.env").read_bytes() == before


def test_when_the_second_file_cannot_be_written_the_first_is_as_it_was(tmp_path: Path) -> None:
    write_tree(tmp_path, {"/a": "old"})
    (tmp_path / "b").mkdir()
    edits = [Edit("/a", "old", "new"), Edit("/b", None, "new")]
    with pytest.raises(CannotWrite, match="^/b cannot be written: Is a directory"):
        KubeletFiles(tmp_path, STATE).write(edits)
    assert (tmp_path / "a").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_bytes_that_are_no_text_survive(tmp_path: Path) -> None:
    write_tree(tmp_path, TREES["kubeadm, flags file"].files)
    flags = tmp_path / "var/lib/kubelet/kubeadm-flags.env"
    flags.write_bytes(b"# caf\xe9 \xff\n" + flags.read_bytes())
    switch(KubeletFiles(tmp_path, STATE))
    assert flags.read_bytes().startswith(b"# caf\xe9 \xff\n")
    assert US.encode() in flags.read_bytes()


def test_a_record_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    files = KubeletFiles(tmp_path, STATE)
    files.folder.mkdir(parents=True)
    (files.folder / "record.json").write_bytes(b"\xff")
    with pytest.raises(BadKubeletFile, match=r"record\.json cannot be read"):
        files.load()
