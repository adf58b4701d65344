"""What is compiled is compiled as a whole, and the program says in which form it runs."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from cri_proxy.version import form_of
from tests.form import FORM, MODULES, REPOSITORY, compiled


def imported_from(file: str) -> ModuleType:
    module = ModuleType("x")
    module.__file__ = file
    return module


FAST, PLAIN = imported_from("/a/x.cpython-39-x86_64-linux-gnu.so"), imported_from("/a/x.py")


def test_every_module_that_can_be_compiled_is_imported_in_the_same_form() -> None:
    assert {form_of(importlib.import_module(name)) for name in MODULES} == {FORM}


def test_one_module_from_source_makes_it_the_source_form(monkeypatch) -> None:
    monkeypatch.setattr("cri_proxy.version.EXTENSION_SUFFIXES", [".cpython-39-x86_64-linux-gnu.so"])
    assert form_of(FAST, FAST) == "compiled"
    assert form_of(FAST, PLAIN) == form_of(PLAIN, PLAIN) == "source"


def test_an_extension_module_of_another_python_is_not_one_of_ours(monkeypatch) -> None:
    monkeypatch.setattr("cri_proxy.version.EXTENSION_SUFFIXES", [".cpython-311-x86_64-linux-gnu.so"])
    assert form_of(FAST) == "source"


def test_whole_packages_are_compiled_but_for_what_is_said_to_stay() -> None:
    for folder in compiled.PARTS:
        paths = {str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / folder).rglob("*.py")}
        compiled_paths = {f"{name.replace('.', '/')}.py" for name in MODULES}
        left = {path for path in paths - compiled_paths if not path.endswith("/__init__.py")}
        assert left <= set(compiled.AS_SOURCE)
    assert {"cri_proxy.relay.http2.pipe", "policies.ladder", "policies.balloons.policy"} <= set(MODULES)


def test_what_the_observer_imports_is_not_compiled() -> None:
    program = (
        "import sys, bpf.__main__, bpf.service.service, bpf.service.server, bpf.sources.ebpf, bpf.sources.fallback\n"
        "print(*(name for name in sys.modules if name.startswith(('policies.', 'cri_proxy.'))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert "policies.affinity.graph.graph" in done.stdout.split()
    assert not set(done.stdout.split()) & set(MODULES)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Sources as ours, of a module that imports another."""
    texts = {
        "cri_proxy/relay/http2/pipe.py": "from cri_proxy.text import quantity\n",
        "cri_proxy/text/quantity.py": "A = 1\n",
        "policies/node.py": "import policies.model\n",
        "policies/model.py": "B = 1\n",
        "cri_proxy/cli/main.py": "C = 1\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "is_other"),
    [
        ("cri_proxy/relay/http2/pipe.py", True),
        ("cri_proxy/text/quantity.py", True),
        ("policies/model.py", True),
        ("cri_proxy/cli/main.py", False),
    ],
)
def test_what_was_made_is_made_anew_when_a_module_or_what_it_imports_has_changed(
    tree: Path, name: str, is_other: bool
) -> None:
    before = compiled.digest(tree, "3.11")
    with (tree / name).open("a") as file:
        file.write("D = 1\n")
    assert (compiled.digest(tree, "3.11") != before) == is_other
    assert compiled.digest(tree, "3.9") != compiled.digest(tree, "3.11")


def test_without_headers_of_a_python_nothing_is_compiled_and_that_is_said(tree: Path) -> None:
    said = compiled.compile_modules(tree, "3.1", tree)
    assert said == "no headers of Python 3.1 here (python3-dev): nothing is compiled for it"
    assert not list(tree.rglob("*.so"))


def test_what_was_compiled_can_be_taken_away(tree: Path) -> None:
    made = (
        "policies/compiled__mypyc.cpython-311-x86_64-linux-gnu.so",
        "policies/node.cpython-311-x86_64-linux-gnu.so",
    )
    for name in (*made, compiled.STAMP):
        (tree / name).touch()
    compiled.remove(tree)
    assert not [name for name in (*made, compiled.STAMP) if (tree / name).exists()]
    assert (tree / "policies/node.py").exists()
