"""What bcc has compiled is kept, and used as long as it is whole; a slow compile holds nothing up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bpf.kernel.compiler import Compiler, Kept
from bpf.kernel.loader import Attachment, load
from bpf.service.options import SYSTEM_PYTHON
from bpf.sources.ebpf import EbpfProvider
from bpf.sources.samples import ProviderLate, ProviderLost
from tests.bpf.talkers import Stage, between, needs_bcc

TEXT = "BPF_ARRAY(seen, u64, 4);\nint crm_aff_t_raw(void *context) { return 0; }\n"
NO_BCC = "/nonexistent/python3"
RESULT = {"maps": [], "programs": {"crm_aff_t_raw": "AAAA"}, "types": ""}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "ebpf"


@pytest.fixture
def held(tmp_path: Path) -> tuple[str, Path]:
    """A Python with bcc that waits until a file is written to."""
    gate, python = tmp_path / "gate", tmp_path / "python"
    os.mkfifo(gate)
    python.write_text(f'#!/bin/sh\nread _ < "{gate}"\nexec {SYSTEM_PYTHON} "$@"\n')
    python.chmod(0o755)
    return str(python), gate


def only_file(folder: Path) -> Path:
    [found] = folder.iterdir()
    return found


@needs_bcc
def test_what_was_compiled_loads_and_sees_without_bcc(stage: Stage, folder: Path) -> None:
    EbpfProvider(lambda number: "", compiler=Compiler(folder=str(folder))).close()
    client, server = stage.one_pod()
    port = int(server.do("serve_tcp(socket.AF_INET, '127.0.0.1', 0, 100, 200)"))
    provider = stage.provider(compiler=Compiler(NO_BCC, str(folder)))
    client.do(f"call_tcp('127.0.0.1', {port}, 100, 200, 1, 3)")
    assert between(provider.sample(10.0).flows, "tcp") == (300, 600)


@needs_bcc
def test_a_kept_result_is_of_this_text_these_programs_and_these_macros_only(folder: Path) -> None:
    wanted = (TEXT, {"A": 1}, ["crm_aff_t_raw"])
    first = Compiler(folder=str(folder)).compile(*wanted)
    assert Compiler(NO_BCC, str(folder)).compile(*wanted) == first
    for other in ((TEXT + "\n", *wanted[1:]), (TEXT, {"A": 2}, wanted[2]), (TEXT, wanted[1], [])):
        with pytest.raises(ProviderLost, match="cannot be run"):
            Compiler(NO_BCC, str(folder)).compile(*other)


@needs_bcc
def test_what_is_kept_is_for_root_alone(folder: Path) -> None:
    Compiler(folder=str(folder)).compile(TEXT, {}, ["crm_aff_t_raw"])
    assert folder.stat().st_mode & 0o777 == 0o700
    assert only_file(folder).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-9]),
        lambda path: path.write_text(path.read_text().replace("AAAA", "AAAB")),
        lambda path: path.write_text("[]"),
        lambda path: path.write_bytes(b"\xff\x00"),
        lambda path: path.chmod(0o620),
        lambda path: path.chmod(0o604),
    ],
    ids=["cut off", "a bit", "other JSON", "no text", "a group may write", "all may read"],
)
def test_what_is_damaged_or_open_to_others_is_removed_and_compiled_anew(
    folder: Path, damage: Callable[[Path], object]
) -> None:
    kept = Kept(str(folder))
    kept.write("k", RESULT)
    assert kept.read("k") == RESULT
    damage(only_file(folder))
    assert kept.read("k") is None
    assert not list(folder.iterdir())


def test_a_link_in_the_place_of_a_result_is_not_followed(folder: Path, tmp_path: Path) -> None:
    kept = Kept(str(folder))
    kept.write("k", RESULT)
    target, link = tmp_path / "target", only_file(folder)
    place = only_file(folder).rename(target)
    link.symlink_to(place)
    assert kept.read("k") is None
    assert target.exists()


def test_only_the_latest_results_are_kept(folder: Path) -> None:
    kept = Kept(str(folder))
    for number in range(12):
        kept.write(f"k{number}", RESULT)
        newest = max(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        os.utime(newest, (number, number))
    assert [kept.read(f"k{number}") is not None for number in range(12)] == [False] * 2 + [True] * 10


def test_what_only_shares_a_name_is_not_used(folder: Path) -> None:
    kept = Kept(str(folder))
    kept.write("k", RESULT)
    path = only_file(folder)
    path.write_text(path.read_text().replace('"asked":"k"', '"asked":"other"'))
    assert kept.read("k") is None
    assert path.exists()


def test_a_disk_that_takes_nothing_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    Kept(str(tmp_path / "file" / "ebpf")).write("k", RESULT)
    assert Kept(str(tmp_path / "file" / "ebpf")).read("k") is None


@needs_bcc
def test_a_slow_compile_goes_on_in_the_background(folder: Path, held: tuple[str, Path]) -> None:
    python, gate = held
    compiler = Compiler(python, str(folder), patience_s=0)
    try:
        with pytest.raises(ProviderLate, match="bcc is still compiling the program"):
            compiler.compile(TEXT, {}, ["crm_aff_t_raw"])
        with pytest.raises(ProviderLate, match="another program"):
            compiler.compile(TEXT, {"A": 1}, ["crm_aff_t_raw"])
        gate.write_text("go\n")
        patient = compiler._child
        assert patient is not None
        patient.process.wait(60)
        assert "crm_aff_t_raw" in compiler.compile(TEXT, {}, ["crm_aff_t_raw"]).programs
    finally:
        compiler.close()
    assert json.loads(only_file(folder).read_text())["result"]["maps"][0]["name"] == "seen"


def test_a_compile_that_is_at_work_ends_with_the_observer(held: tuple[str, Path]) -> None:
    compiler = Compiler(held[0], patience_s=0)
    with pytest.raises(ProviderLate):
        compiler.compile(TEXT, {}, [])
    child = compiler._child
    assert child is not None
    compiler.close()
    assert child.process.returncode is not None


@needs_bcc
def test_a_result_that_the_kernel_does_not_load_is_a_refusal(folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "bad.c"
    source.write_text("int crm_aff_t_raw(void *context) { return bpf_skb_cgroup_id(context); }")
    wanted = [Attachment("raw_tracepoint", "crm_aff_t_raw", "sched_waking")]
    for python in (SYSTEM_PYTHON, NO_BCC):
        with pytest.raises(ProviderLost, match="the kernel does not load the program crm_aff_t_raw"):
            load(source, wanted, Compiler(python, str(folder)))


@needs_bcc
def test_without_the_rights_to_make_maps_the_reason_is_told_where_nothing_is_compiled(
    folder: Path, tmp_path: Path
) -> None:
    source = tmp_path / "map.c"
    source.write_text(TEXT)
    code = (
        "import sys; from pathlib import Path; from bpf.kernel.compiler import Compiler; from bpf.kernel.loader import *\n"
        "try:\n    load(Path(sys.argv[1]), [Attachment('raw_tracepoint', 'crm_aff_t_raw', 'sched_waking', False)], "
        "Compiler(folder=sys.argv[2])).close()\nexcept ProviderLost as error:\n    print(error)"
    )
    command = [sys.executable, "-c", code, str(source), str(folder)]
    rights = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    done = [
        subprocess.run(
            [*prefix, *command], capture_output=True, text=True, cwd=Path(__file__).parents[3], check=True
        )
        for prefix in ([], rights)
    ]
    assert done[0].stdout == ""
    assert done[1].stdout.startswith("the kernel makes no BPF maps: ")
    assert "Operation not permitted" in done[1].stdout
