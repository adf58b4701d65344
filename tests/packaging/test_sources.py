"""What packages are made of: locked dependencies, the unpacked wheels, the manual, the completions, the list of licences."""

from __future__ import annotations

import queue
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import click
import pytest

from cri_proxy.cli.main import cli
from cri_proxy.config.documents import sample_config
from cri_proxy.version import DOCUMENTS
from tests.packaging.roots import REPOSITORY

FOLDER = REPOSITORY / "packaging"
sys.path.insert(0, str(FOLDER))
try:
    import architectures
    import build
    import manuals
    import prepare
    import stage
    import told
    import vendor
finally:
    sys.path.remove(str(FOLDER))

PYTHONS = ("3.9", "3.10", "3.11", "3.12", "3.13")


@pytest.mark.parametrize("python", PYTHONS)
def test_every_dependency_is_locked_by_version_and_the_hash_of_each_architectures_wheel(python: str) -> None:
    locked = vendor.lock_file(python).read_text()
    line = r"^([a-z0-9-]+)==[0-9.]+((?: --hash=sha256:[0-9a-f]{64})+)$"
    hashes = {name: found.count("--hash") for name, found in re.findall(line, locked, re.MULTILINE)}
    wanted = {re.split(r"[ <>=]", line)[0].lower().replace("_", "-") for line in vendor.requirements(python)}
    assert wanted <= set(hashes)
    assert len(hashes) == len(locked.splitlines()) - 1
    compiled = {name for name, count in hashes.items() if count == len(architectures.ARCHITECTURES)}
    assert compiled == {"multidict", "protobuf", "pyyaml", "uvloop"}
    assert {hashes[name] for name in set(hashes) - compiled} == {1}


def test_an_architecture_has_its_own_of_a_lines_hashes_or_the_one_that_all_share() -> None:
    shared, first, second = ("a" * 64, "b" * 64, "c" * 64)
    lock = f"x==1 --hash=sha256:{shared}\ny==1 --hash=sha256:{first} --hash=sha256:{second}\n"
    assert vendor.locked_digests(lock, architectures.X86_64) == {shared, first}
    assert vendor.locked_digests(lock, architectures.AARCH64) == {shared, second}


def shown_commands() -> list[str]:
    context = click.Context(cli)
    found = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    return [name for name, command in found.items() if command is not None and not command.hidden]


def test_a_python_without_a_lock_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(
        SystemExit, match=r"PYTHON=3\.7: there is no requirements-3\.7\.txt; there are those for 3\.10"
    ):
        vendor.fetch("3.7", architectures.X86_64, tmp_path)


def test_a_deb_is_built_for_each_release_and_for_this_machine() -> None:
    assert build.default_pythons("deb", "3.11") == ["3.11", "3.12", "3.13"]
    assert build.default_pythons("deb", "3.9") == ["3.9", "3.11", "3.12", "3.13"]
    assert build.default_pythons("rpm", "3.9") == ["3.9"]
    assert all(vendor.lock_file(python).exists() for python in build.default_pythons("deb", "3.11"))


WHEEL = {
    "thing/__init__.py": "#!/usr/bin/env python\nx = 1\n",
    "thing/_fast.so": "elf",
    "thing/_fast.pyx": "source",
    "thing/tests/test_thing.py": "",
    "thing-1.0.dist-info/METADATA": "Name: thing\nLicense-Expression: MIT\n",
    "thing-1.0.dist-info/RECORD": "",
    "thing-1.0.dist-info/licenses/LICENSE": "the text",
}


@pytest.fixture
def unpacked(tmp_path: Path) -> Path:
    with zipfile.ZipFile(tmp_path / "thing-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in WHEEL.items():
            wheel.writestr(name, text)
    vendor.unpack(tmp_path / "thing-1.0-py3-none-any.whl", tmp_path / "site", tmp_path / "licences")
    return tmp_path


def test_what_nobody_imports_is_left_out(unpacked: Path) -> None:
    files = {
        str(found.relative_to(unpacked / "site")) for found in unpacked.glob("site/**/*") if found.is_file()
    }
    assert files == {"thing/__init__.py", "thing/_fast.so", "thing-1.0.dist-info/METADATA"}
    assert (unpacked / "site/thing/__init__.py").read_text() == "\nx = 1\n"


def test_each_vendored_module_is_listed_with_its_licence(unpacked: Path) -> None:
    listed = prepare.vendored_list([unpacked / "site"], unpacked / "licences")
    assert "| thing | 1.0 | MIT | thing-1.0/LICENSE |" in listed


def test_a_module_without_a_licence_text_cannot_be_packed(unpacked: Path) -> None:
    (unpacked / "licences/thing-1.0/LICENSE").unlink()
    with pytest.raises(SystemExit, match=r"thing 1\.0: its wheel has no licence text"):
        prepare.vendored_list([unpacked / "site"], unpacked / "licences")


@pytest.mark.parametrize("name", shown_commands())
def test_the_manual_has_every_command(name: str) -> None:
    written = name.replace("-", "\\-")
    assert re.search(rf"^\.SS \\fB{re.escape(written)}( |\\fR)", manuals.manual_page(), re.MULTILINE)


def words_of(text: str) -> list[str]:
    """Without what only sets it: the help is wrapped for a terminal, the page by troff."""
    plain = (
        re.sub(r"\\f[BIR]|\\&|^\.\w+ ?", "", text, flags=re.MULTILINE)
        .replace("\\-", "-")
        .replace("\\e", "\\")
    )
    return plain.split()


def every_command(group: click.Group = cli, words: tuple[str, ...] = ()) -> list[str]:
    context, found = click.Context(group), []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is not None and not command.hidden:
            found.append(" ".join((*words, name)))
            found += every_command(command, (*words, name)) if isinstance(command, click.Group) else []
    return found


@pytest.mark.parametrize("name", every_command())
def test_the_manual_says_the_same_as_the_help(name: str) -> None:
    command: click.Command = cli
    context = click.Context(cli, info_name="cri-resmgr")
    for word in name.split():
        assert isinstance(command, click.Group)
        found = command.get_command(context, word)
        assert found is not None
        command, context = found, click.Context(found, info_name=word, parent=context)
    section = " ".join(words_of(said_of(name)))
    assert " ".join(words_of(command.help or "")) in section
    for option in command.get_params(context):
        record = option.get_help_record(context)
        if isinstance(option, click.Option) and record is not None and "--help" not in option.opts:
            assert " ".join(words_of("\n".join(record))) in section, option.name


def said_of(title: str) -> str:
    """The manual's section about a command."""
    page = manuals.manual_page().replace("\\-", "-")
    return page.partition(f".SS \\fB{title}\\fR")[2].partition(".SS ")[0]


def test_the_manual_has_the_options_that_all_commands_of_a_group_have() -> None:
    assert ".B --config FILE\n" in said_of("kubelet")


def test_the_manual_says_once_that_there_is_help() -> None:
    assert manuals.manual_page().count("\\-\\-help") == 1


@pytest.mark.parametrize("name", ["doctor", "kubelet status"])
def test_an_exit_code_that_is_an_answer_is_told(name: str) -> None:
    told = manuals.manual_page().partition(".SH EXIT STATUS")[2].partition(".SH FILES")[0]
    assert f"Of \\fB{name}\\fR" in told
    assert "Exit code 1" in said_of(name)


def test_the_manual_is_set_without_a_warning(tmp_path: Path) -> None:
    if shutil.which("groff") is None:
        pytest.skip("no groff")
    (tmp_path / "cri-resmgr.8").write_text(manuals.manual_page())
    command = ["groff", "-man", "-Tutf8", "-ww", "-z", str(tmp_path / "cri-resmgr.8")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stderr == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_asks_the_program(shell: str) -> None:
    assert f"_CRI_RESMGR_COMPLETE={shell}_complete" in manuals.completion(shell)


@pytest.fixture
def staged(tmp_path: Path) -> Path:
    """A deb's files, without the program's."""
    prepared, root = tmp_path / "prepared", tmp_path / "root"
    for name in (
        "site/x.py",
        "site-x86_64/x.so",
        "licences/x",
        "man/cri-resmgr.8",
        "completion/bash",
        "completion/zsh",
        "completion/fish",
        "chart/Chart.yaml",
        "config.yaml",
    ):
        (prepared / name).parent.mkdir(parents=True, exist_ok=True)
        (prepared / name).write_text(sample_config() if name == "config.yaml" else "")
    stage.stage(prepared, "3.11", architectures.X86_64, "deb", root)
    return root


def test_clients_in_other_languages_have_the_proto_of_this_version(staged: Path) -> None:
    proto = staged / "usr/share/cri-resmgr/affinity.proto"
    assert proto.read_bytes() == (REPOSITORY / "cri_api/affinity.proto").read_bytes()


def test_the_pages_lie_on_a_node_as_they_do_here_so_that_links_and_hints_lead_to_them(staged: Path) -> None:
    pages = [
        "README.md",
        *(str(page.relative_to(REPOSITORY)) for page in (REPOSITORY / "docs").rglob("*.md")),
    ]
    packed = staged / "usr/share/doc/cri-resmgr"
    assert {name: (packed / name).read_bytes() for name in pages} == {
        name: (REPOSITORY / name).read_bytes() for name in pages
    }
    assert staged / DOCUMENTS.lstrip("/") == packed / "docs"
    assert not (packed / "docs/pictures").exists()
    named = re.findall(r"/\S+\.md", (staged / "etc/cri-resmgr/config.yaml").read_text())
    assert [(staged / page.lstrip("/")).exists() for page in named] == [True]


def test_the_maintainer_scripts_are_shell(tmp_path: Path) -> None:
    for script in [*FOLDER.glob("deb/p*"), FOLDER / "files" / "maintain"]:
        subprocess.run(["sh", "-n", str(script)], check=True)


SAYING = re.compile(r"^# A separate image service.*?^}\n", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(
    ("path", "text", "images"),
    [
        ("cri-resmgr/config.yaml", "relay:\n  image_endpoint: unix:///run/i.sock # ours\n", "/run/i.sock"),
        ("cri-resmgr/config.yaml", 'relay: {image_endpoint: "/var/run/i.sock"}\n', "/var/run/i.sock"),
        ("default/cri-resource-manager", 'CONFIG_OPTIONS="-image-socket=/run/i.sock -x"\n', "/run/i.sock"),
        ("default/cri-resource-manager", "CONFIG_OPTIONS=--image-socket unix:///run/i.sock\n", "/run/i.sock"),
        ("cri-resmgr/config.yaml", "relay: {image_endpoint: /var/run/containerd/containerd.sock}\n", ""),
        ("cri-resmgr/config.yaml", "# relay: {image_endpoint: /run/i.sock}\n", ""),
        ("default/cri-resource-manager", "CONFIG_OPTIONS=-image-socket default -relay-socket /run/x\n", ""),
        ("cri-resmgr/config.yaml", "log: {level: info}\n", ""),
    ],
)
def test_an_upgrade_says_that_kubelet_needs_a_separate_image_service_itself(
    tmp_path: Path, path: str, text: str, images: str
) -> None:
    (tmp_path / "etc" / path).parent.mkdir(parents=True)
    (tmp_path / "etc" / path).write_text(text)
    (tmp_path / "endpoints.json").write_text('{"socket": "/s", "runtime": "/run/containerd/containerd.sock"}')
    [deb, rpm] = [
        SAYING.findall((FOLDER / name).read_text()) for name in ("deb/preinst", "rpm/cri-resmgr.spec")
    ]
    assert deb == rpm
    script = deb[0].replace(" /etc/", f" {tmp_path}/etc/").replace("/var/lib/cri-resmgr/", f"{tmp_path}/")
    done = subprocess.run(["sh", "-ec", f"{script}say_images"], capture_output=True, text=True, check=True)
    assert (f"imageServiceEndpoint: unix://{images} " in done.stderr) is bool(images)
    assert bool(done.stderr) is bool(images)


REFUSING = re.compile(r"^# An installation by hand.*?^}\n", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(
    ("files", "refused"),
    [
        ((), False),
        (("lib/cri-resmgr/__pycache__/x.pyc",), False),
        (("lib/cri-resmgr/bin/python",), True),
        (("lib/cri-resmgr/bin/python", "state/.fresh"), False),
    ],
    ids=["nothing", "bytecode that was left", "by hand", "an installation that was cut off"],
)
def test_a_first_installation_refuses_a_folder_that_was_installed_by_hand(
    tmp_path: Path, files: tuple[str, ...], refused: bool
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    texts = [(FOLDER / name).read_text() for name in ("deb/preinst", "rpm/cri-resmgr.spec")]
    [deb], [rpm] = map(REFUSING.findall, texts)
    assert deb == rpm
    assert '[ "$1" != install ] || refuse_by_hand\n' in texts[0]
    assert '[ "$1" -ne 1 ] || refuse_by_hand || exit 1\n' in texts[1]
    script = deb.replace(" /usr/lib/", f" {tmp_path}/lib/").replace(
        "/var/lib/cri-resmgr/", f"{tmp_path}/state/"
    )
    done = subprocess.run(
        ["sh", "-ec", f"{script}refuse_by_hand"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, bool(done.stderr)) == ((1, True) if refused else (0, False))


def test_unknown_words_are_answered_with_the_usage() -> None:
    done = subprocess.run([FOLDER / "files" / "maintain", "x"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: maintain installed")


def test_what_a_program_says_is_in_a_log_that_is_named_when_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(told, "LOGS", tmp_path / "log")
    pip = "echo Collecting x; echo 'ERROR: No matching distribution found for x' >&2; echo; echo a notice; exit {}"
    told.run(["sh", "-c", pip.format(0)], "pip", "no wheels")
    assert capfd.readouterr() == ("", "")
    log = tmp_path / "log" / "pip.log"
    sentence = f"packaging: no wheels: ERROR: No matching distribution found for x (all that was said: {log})"
    with pytest.raises(SystemExit, match=re.escape(sentence)):
        told.run(["sh", "-c", pip.format(1)], "pip", "no wheels")
    assert log.read_text().startswith("Collecting x\n")


def test_that_another_build_must_end_first_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: queue.Queue[str] = queue.Queue()
    monkeypatch.setattr(told, "say", said.put)
    with (tmp_path / "lock").open("w") as first, (tmp_path / "lock").open("w") as second:
        told.lock(first)
        assert said.empty()
        waiting = threading.Thread(target=told.lock, args=[second])
        waiting.start()
        assert "waiting" in said.get()
        first.close()
        waiting.join()
