"""The builder of peers, with a real Go and modules of the tests' own behind a proxy in a folder."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.peers import build, programs
from tests.peers.build import Peer, Unavailable, all_peers, read_peer

MAIN = 'package main\n\nvar version = "none"\n\nfunc main() { println("hello", version) }\n'
TESTS_ONLY = 'package main\n\nimport "testing"\n\nfunc TestIt(t *testing.T) { t.Log("seen") }\n'
IN_C = '#include <stdio.h>\n\nint main(void) { return puts("hello from C") < 0; }\n'

needs_go = pytest.mark.skipif(shutil.which("go") is None, reason="Go is not installed: make peers gets it.")


def publish(proxy: Path, module: str, version: str, files: dict[str, str]) -> None:
    """A version of a module, laid out as the protocol of module proxies has it."""
    folder = proxy / module / "@v"
    folder.mkdir(parents=True)
    content = {"go.mod": f"module {module}\n\ngo 1.20\n", **files}
    (folder / "list").write_text(f"{version}\n")
    (folder / f"{version}.info").write_text(json.dumps({"Version": version}))
    (folder / f"{version}.mod").write_text(content["go.mod"])
    with zipfile.ZipFile(folder / f"{version}.zip", "w") as archive:
        for name, text in content.items():
            archive.writestr(f"{module}@{version}/{name}", text)


@pytest.fixture
def proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the proxy that go asks, with one module of two programs; what go has fetched is the test's own."""
    folder = tmp_path / "proxy"
    files = {"cmd/hello/main.go": MAIN, "cmd/suite/it_test.go": TESTS_ONLY, "c/greet.c": IN_C}
    publish(folder, "example.test/tools", "v1.2.3", files)
    for name, value in {
        "GOPROXY": f"file://{folder}",
        "GONOSUMDB": "example.test",
        "GOMODCACHE": str(tmp_path / "modules"),
    }.items():
        monkeypatch.setenv(name, value)
    return folder


@pytest.fixture
def peer(tmp_path: Path, proxy: Path) -> Peer:
    folder = tmp_path / "peers" / "tools"
    folder.mkdir(parents=True)
    (folder / "go.mod").write_text(
        "module cri-resmgr/tests/peers/tools\n\ngo 1.20\n\n"
        "tool (\n\texample.test/tools/cmd/hello\n\texample.test/tools/cmd/suite\n)\n\n"
        "require example.test/tools v1.2.3\n"
    )
    subprocess.run(("go", "mod", "download", "all"), cwd=folder, check=True, capture_output=True)
    write_settings(folder, "-ldflags=-X main.version={version}")
    return read_peer(folder)


def write_settings(folder: Path, *flags: str) -> None:
    settings = {"flags": flags, "environment": {"CGO_ENABLED": "0"}}
    (folder / "build.json").write_text(json.dumps(settings))


def said_by(program: Path, *words: str) -> str:
    done = subprocess.run((program, *words), capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


@needs_go
def test_a_program_is_built_once_with_its_version_and_lines_before_and_after_say_so(
    peer: Peer, tmp_path: Path
) -> None:
    lines: list[str] = []
    first = build.programs(peer, ["hello"], cache=tmp_path / "kept", say=lines.append)
    again = build.programs(peer, ["hello"], cache=tmp_path / "kept", say=lines.append)
    assert said_by(first["hello"]) == "hello v1.2.3\n"
    assert again == first
    assert [re.split("; | in ", line)[0] for line in lines] == [
        "building tools v1.2.3: hello",
        "built tools v1.2.3: hello",
    ]


@needs_go
def test_two_that_ask_at_once_have_one_build(peer: Peer, tmp_path: Path) -> None:
    lines: list[str] = []
    with ThreadPoolExecutor(2) as both:
        tasks = [
            both.submit(build.programs, peer, ["hello"], cache=tmp_path / "kept", say=lines.append)
            for _ in range(2)
        ]
    assert tasks[0].result() == tasks[1].result()
    assert len(lines) == 2


@needs_go
def test_other_flags_are_another_program(peer: Peer, tmp_path: Path) -> None:
    before = build.programs(peer, ["hello"], cache=tmp_path / "kept")
    write_settings(peer.folder)
    after = build.programs(read_peer(peer.folder), ["hello"], cache=tmp_path / "kept")
    assert said_by(after["hello"]) == "hello none\n"
    assert said_by(before["hello"]) == "hello v1.2.3\n"


@needs_go
def test_what_is_no_longer_asked_for_goes_with_the_next_build(peer: Peer, tmp_path: Path) -> None:
    [old] = build.programs(peer, ["hello"], cache=tmp_path / "kept").values()
    write_settings(peer.folder)
    [between] = build.programs(read_peer(peer.folder), ["hello"], cache=tmp_path / "kept").values()
    assert old.exists()
    other = old.parents[1] / "tools-1.0-0123456789ab"  # of a peer whose name begins as this one's
    other.mkdir()
    for folder in (old.parent, other):
        os.utime(folder, (0, 0))
    write_settings(peer.folder, "-ldflags=-s")
    build.programs(read_peer(peer.folder), ["hello"], cache=tmp_path / "kept")
    assert (old.exists(), between.exists(), other.exists()) == (False, True, True)


@needs_go
def test_a_package_of_tests_only_is_a_test_binary(peer: Peer, tmp_path: Path) -> None:
    built = build.programs(peer, cache=tmp_path / "kept")
    assert "seen" in said_by(built["suite"], "-test.v")


@needs_go
def test_what_only_its_tests_import_is_fetched_too(
    tmp_path: Path, proxy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uses = TESTS_ONLY.replace('"testing"', '(\n\t"testing"\n\n\t_ "example.test/beside"\n)')
    publish(proxy, "example.test/beside", "v1.0.0", {"beside.go": "package beside\n"})
    needs = "module example.test/tested\n\ngo 1.20\n\nrequire example.test/beside v1.0.0\n"
    publish(proxy, "example.test/tested", "v1.0.0", {"go.mod": needs, "suite/it_test.go": uses})
    folder = tmp_path / "peers" / "tested"
    folder.mkdir(parents=True)
    (folder / "go.mod").write_text(
        "module cri-resmgr/tests/peers/tested\n\ngo 1.20\n\n"
        "tool example.test/tested/suite\n\nrequire example.test/tested v1.0.0\n"
    )
    subprocess.run(("go", "mod", "download", "all"), cwd=folder, check=True, capture_output=True)
    write_settings(folder)
    monkeypatch.setenv("GOMODCACHE", str(tmp_path / "of a new machine"))
    suite = build.programs(read_peer(folder), ["suite"], cache=tmp_path / "kept")["suite"]
    assert "PASS" in said_by(suite, "-test.v")


@needs_go
def test_go_code_of_the_folder_is_built_with_it_and_a_change_of_it_is_another_program(
    peer: Peer, proxy: Path, tmp_path: Path
) -> None:
    publish(proxy, "example.test/greet", "v1.4.0", {"greet.go": 'package greet\n\nconst Word = "hello"\n'})
    main = peer.folder / "own" / "main.go"
    beside = peer.folder / "beside" / "beside.go"
    for file in (main, beside):
        file.parent.mkdir()
    (beside.parent / "go.mod").write_text("module example.test/beside\n\ngo 1.20\n")
    beside.write_text('package beside\n\nconst Name = "one"\n')
    main.write_text(
        'package main\n\nimport (\n\t"example.test/beside"\n\t"example.test/greet"\n)\n\n'
        "func main() { println(greet.Word, beside.Name) }\n"
    )
    (peer.folder / "go.mod").write_text(
        "module cri-resmgr/tests/peers/tools\n\ngo 1.20\n\ntool cri-resmgr/tests/peers/tools/own\n\n"
        "require (\n\texample.test/greet v1.4.0\n\texample.test/beside v0.0.0\n)\n\n"
        "replace example.test/beside => ./beside\n"
    )
    subprocess.run(("go", "mod", "download", "all"), cwd=peer.folder, check=True, capture_output=True)
    ours = read_peer(peer.folder)
    assert ours.version == "v1.4.0"
    assert said_by(build.programs(ours, cache=tmp_path / "kept")["own"]) == "hello one\n"
    beside.write_text('package beside\n\nconst Name = "two"\n')
    assert said_by(build.programs(ours, cache=tmp_path / "kept")["own"]) == "hello two\n"


@needs_go
def test_a_file_of_a_package_is_there_as_it_is(peer: Peer, proxy: Path, tmp_path: Path) -> None:
    proto = 'syntax = "proto3";\n'
    publish(proxy, "example.test/api", "v1.0.0", {"v1/api.go": "package v1\n", "v1/api.proto": proto})
    module = peer.folder / "go.mod"
    module.write_text(
        "module cri-resmgr/tests/peers/api\n\ngo 1.20\n\n"
        "tool example.test/api/v1\n\nrequire example.test/api v1.0.0\n"
    )
    subprocess.run(("go", "mod", "download", "all"), cwd=peer.folder, check=True, capture_output=True)
    settings = {
        "names": {"api": "api.proto"},
        "files": {"api.proto": "api.proto"},
        "flags": [],
        "environment": {},
    }
    (peer.folder / "build.json").write_text(json.dumps(settings))
    [found] = build.programs(read_peer(peer.folder), cache=tmp_path / "kept").values()
    assert (found.name, found.read_text()) == ("api.proto", proto)


@needs_go
def test_what_was_fetched_once_is_built_without_the_proxy(
    peer: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build.programs(peer, cache=tmp_path / "kept")
    monkeypatch.setenv("GOPROXY", "off")
    assert said_by(build.programs(peer, cache=tmp_path / "new")["hello"]) == "hello v1.2.3\n"


@needs_go
def test_a_proxy_that_is_not_reached_is_a_sentence(
    peer: Peer, proxy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy.rename(tmp_path / "gone")
    monkeypatch.setenv("GOMODCACHE", str(tmp_path / "empty"))
    with pytest.raises(Unavailable, match=r"^tools v1.2.3: go mod failed: .*no such file") as raised:
        build.programs(peer, cache=tmp_path / "kept")
    assert "\n" not in str(raised.value)


@needs_go
def test_a_module_that_is_another_than_it_was_is_refused(
    peer: Peer, proxy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(proxy)
    publish(proxy, "example.test/tools", "v1.2.3", {"cmd/hello/main.go": MAIN.replace("hello", "evil")})
    monkeypatch.setenv("GOMODCACHE", str(tmp_path / "empty"))
    with pytest.raises(Unavailable, match="SECURITY ERROR"):
        build.programs(peer, cache=tmp_path / "kept")
    assert not list((tmp_path / "kept").rglob("hello"))


@needs_go
def test_a_program_that_the_build_calls_is_named(peer: Peer, tmp_path: Path) -> None:
    settings = {"flags": [], "environment": {}, "needs": ["sh", "no-such-compiler"]}
    (peer.folder / "build.json").write_text(json.dumps(settings))
    with pytest.raises(Unavailable, match=r"^tools v1.2.3 cannot be built: not installed: no-such-compiler$"):
        build.programs(read_peer(peer.folder), cache=tmp_path / "kept")


@needs_go
def test_an_older_go_is_named(peer: Peer) -> None:
    module = peer.folder / "go.mod"
    module.write_text(module.read_text().replace("go 1.20", "go 1.999"))
    with pytest.raises(Unavailable, match=r"needs Go 1\.999 and only go1\.\S+ \S+ is there: make peers"):
        build.find_go(read_peer(peer.folder))


def test_without_go_the_sentence_says_what_brings_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(build, "OWN_GO", tmp_path / "none")
    for peer in all_peers():
        with pytest.raises(
            Unavailable, match=f"^{peer.name} v.* needs Go 1.* there is none: make peers gets it$"
        ):
            build.find_go(peer)


def test_a_run_without_go_says_what_it_goes_without(tmp_path: Path) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        code = (
            "import sys; from pathlib import Path; from tests.peers import build, __main__ as it; "
            f"build.OWN_GO = Path({str(tmp_path)!r}); sys.exit(it.main())"
        )
        command = (sys.executable, "-c", code, *words)
        return subprocess.run(
            command, env={"PATH": str(tmp_path)}, cwd=build.PEERS.parents[1], capture_output=True, text=True
        )

    done = run("kubectl", "crictl")
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert [line.partition(":")[0] for line in lines] == ["without crictl", "without kubectl"]
    assert all(line.endswith("make peers gets it") for line in lines)
    of_all = run().stdout
    assert [peer.name for peer in all_peers() if f": {peer.name} {peer.version} needs Go" not in of_all] == [
        peer.name for peer in all_peers() if peer.is_by_name
    ]
    assert run("--or-without", "kubectl").returncode == 0
    wrong = run("no-such-peer")
    assert (wrong.returncode, "no peer has no-such-peer" in wrong.stderr) == (2, True)


@needs_go
def test_two_peers_with_programs_of_the_same_name_are_told_apart(
    peer: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = json.loads((peer.folder / "build.json").read_text())
    older = peer.folder.with_name("tools-1.0")
    shutil.copytree(peer.folder, older)
    (older / "build.json").write_text(json.dumps({**settings, "qualified": True, "flags": []}))
    peers = all_peers(peer.folder.parent)
    monkeypatch.setattr(programs, "all_peers", lambda: peers)
    monkeypatch.setattr(programs, "programs", functools.partial(build.programs, cache=tmp_path / "kept"))
    programs.peers_by_program.cache_clear()
    try:
        found = programs.find("hello", "tools-1.0/hello")
        with pytest.raises(KeyError):
            programs.find("tools/hello")
    finally:
        programs.peers_by_program.cache_clear()
    assert {name: said_by(path) for name, path in found.items()} == {
        "hello": "hello v1.2.3\n",
        "tools-1.0/hello": "hello none\n",
    }
    assert [path.name for path in found.values()] == ["hello", "hello"]


@needs_go
@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed.")
def test_a_program_in_c_is_built_of_its_folder_in_the_module(peer: Peer, tmp_path: Path) -> None:
    settings = json.loads((peer.folder / "build.json").read_text())
    (peer.folder / "build.json").write_text(json.dumps({**settings, "c_programs": {"greet": "c"}}))
    with_c = read_peer(peer.folder)
    built = build.programs(with_c, ["greet"], cache=tmp_path / "kept")
    assert {name: said_by(path) for name, path in built.items()} == {"greet": "hello from C\n"}
    assert set(build.programs(with_c, cache=tmp_path / "kept")) == {"hello", "suite", "greet"}
    (peer.folder / "build.json").write_text(json.dumps({**settings, "c_programs": {"greet": "elsewhere"}}))
    with pytest.raises(Unavailable, match=r"^tools v1.2.3: gcc -O2 failed: .*no input files"):
        build.programs(read_peer(peer.folder), ["greet"], cache=tmp_path / "kept")


def test_every_program_is_of_one_peer() -> None:
    names = [name for peer in all_peers() for name in peer.asked_for]
    assert len(set(names)) == len(names)
    assert {*programs.CLUSTER, *programs.CONTAINERD_17} <= set(names)


def test_kubernetes_staging_modules_are_those_of_its_version() -> None:
    kubernetes = read_peer(build.PEERS / "kubernetes")
    replaced = [line for line in (kubernetes.folder / "go.mod").read_text().splitlines() if "=>" in line]
    wanted = kubernetes.version.replace("v1.", "v0.")
    assert replaced
    assert [line for line in replaced if line.split()[-1] != wanted] == []
