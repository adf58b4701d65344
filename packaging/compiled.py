"""The modules that are compiled (mypyc), where a compiler and the headers of a Python are there; ``make compiled``.

    compiled.py [--python 3.11] [FOLDER]  extension modules for that Python beside the sources in FOLDER, a tree like ours

Sources stay beside the extension modules: they are what tracebacks quote, and what another Python or machine imports, as a
name's suffix says which Python an extension module is for. What was made is kept in .cache, under the hash of its sources.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Optional

from told import lock, run, say

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
CACHE = REPOSITORY / ".cache"
#: Packages whose modules are compiled, each into one library. What each gains: docs/dev/benchmarks.md.
PARTS = ("cri_proxy/relay/http2", "policies")
#: All that they import and that decides what is made.
OURS = ("cri_proxy/", "policies/")
#: What the observer imports, which must stay small: one module of a library has all of it in memory.
OBSERVERS = (
    "policies/affinity/graph/graph.py",
    "policies/affinity/graph/groups.py",
    "policies/affinity/graph/owner_memory.py",
    "policies/affinity/graph/remote.py",
    "policies/affinity/graph/traffic.py",
    "policies/affinity/pull/owners.py",
    "policies/frozen.py",
    "policies/machine/cpus.py",
)
#: Values, of which copies are made by their ``__dict__`` (``altered``) or by pickle (to the planner's process); and what
#: classes that are not compiled derive from.
AS_SOURCE = ("policies/affinity/planner/problem.py", "policies/model.py", "policies/policy.py", *OBSERVERS)
#: The last mypy for Python 3.9, so that all are compiled by the same one.
TOOLS = ("mypy==1.19.1", "setuptools==80.9.0")
#: Types of other packages decide nothing here, so that the same sources give the same C.
MYPY = (
    "--config-file=",
    "--strict-bytes",
    "--follow-imports=silent",
    "--ignore-missing-imports",
    "--no-site-packages",
)
#: As many are kept of what was made, those used last; 6 MB each.
KEPT = 12
#: Names of the extension modules, and of what says which sources they are of.
MADE, STAMP = "*.cpython-*.so", "compiled-sources"


def modules(root: Path) -> dict[str, list[str]]:
    """The files that are compiled, as paths from ``root``, by their part."""
    found: dict[str, list[str]] = {}
    for part in PARTS:
        paths = [path.relative_to(root) for path in (root / part).rglob("*.py") if path.name != "__init__.py"]
        found[part] = sorted(str(path) for path in paths if str(path) not in AS_SOURCE)
    return found


def library_of(part: str) -> str:
    """The library of a part's modules, in its package, so that it is found however that is; mypyc appends a suffix."""
    return f"{part}/{part.rpartition('/')[2]}"


def digest(root: Path, python: str) -> str:
    """Of all that decides what is made: the compiled modules, those they import, what compiles them, and for what."""
    hashed = hashlib.sha256(f"{python} {platform.machine()} {TOOLS} {MYPY}".encode())
    hashed.update(Path(__file__).read_bytes())
    for path in sorted(_with_imports(root, [name for names in modules(root).values() for name in names])):
        hashed.update(f"{path}\n".encode() + (root / path).read_bytes())
    return hashed.hexdigest()[:20]


def _with_imports(root: Path, names: Iterable[str]) -> set[str]:
    found, left = set(names), list(names)
    while left:
        for node in ast.walk(ast.parse((root / left.pop()).read_bytes())):
            imported = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            imported += [f"{node.module}.{alias.name}" for alias in node.names] if imported else []
            imported += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for path in (f"{name.replace('.', '/')}.py" for name in imported):
                # What protoc makes has no types; a package's tree has other packages, too.
                is_ours = path.startswith(OURS) and not path.endswith("_pb2.py")
                if is_ours and path not in found and (root / path).is_file():
                    found.add(path)
                    left.append(path)
    return found


def compile_modules(root: Path, python: str, target: Path) -> str:
    """Put the extension modules of the sources in ``root`` for ``python`` (``3.11``) and this machine into ``target``, where
    they belong beside the sources.

    Returns why there are none, in a sentence; "" = there are.

    :raises SystemExit: the sources cannot be compiled; the log has what mypyc or the compiler said.
    """
    interpreter = with_headers(python)
    if interpreter is None:
        return f"no headers of Python {python} here (python3-dev): nothing is compiled for it"
    if shutil.which("gcc") is None:
        return "no gcc here: nothing is compiled"
    made = CACHE / "compiled" / digest(root, python)
    made.parent.mkdir(parents=True, exist_ok=True)
    # Builds side by side share what is made; one of them makes it.
    with (CACHE / "compiled.lock").open("w") as file:
        lock(file)
        if not made.is_dir():
            _build(root, python, interpreter, made)
        os.utime(made)
        for unused in sorted(made.parent.iterdir(), key=lambda found: found.stat().st_mtime)[:-KEPT]:
            shutil.rmtree(unused)
        shutil.copytree(made, target, dirs_exist_ok=True)
    return ""


def remove(root: Path) -> None:
    """Take all extension modules out of a tree, and the stamp."""
    for path in _made_below(root):
        path.unlink()
    (root / STAMP).unlink(missing_ok=True)


def _made_below(root: Path) -> list[Path]:
    return [path for part in PARTS for path in (root / part).rglob(MADE)]


def with_headers(python: str) -> Optional[str]:
    """A program that is this Python and has its headers. Debian's (python3-dev), the PATH's, those of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    installed = sorted(map(str, pyenv.glob(f"versions/{python}.*/bin/python{python}")))
    asked = (
        "import os, sys, sysconfig; "
        "print(os.path.exists(sysconfig.get_path('include') + '/Python.h'), '%d.%d' % sys.version_info[:2])"
    )
    for program in (f"/usr/bin/python{python}", shutil.which(f"python{python}"), *installed):
        if program is None or not os.path.exists(program):
            continue
        said = subprocess.run(
            [program, "-c", asked], capture_output=True, text=True, check=False
        ).stdout.split()
        if said == ["True", python]:
            return program
    return None


def _build(root: Path, python: str, interpreter: str, made: Path) -> None:
    tools = CACHE / f"{'-'.join(TOOLS)}-py{python}"
    if not tools.is_dir():
        say(f"fetching mypyc for Python {python}, some 15 MB; kept for the next build")
        pip = [sys.executable, "-m", "pip", "install", "--progress-bar=off", "--disable-pip-version-check"]
        only = ["--only-binary=:all:", "--python-version", python]
        scratch = tools.with_name(f"{tools.name}.new")
        shutil.rmtree(scratch, ignore_errors=True)
        words = [*pip, *only, "--target", str(scratch), *TOOLS]
        run(words, f"pip-mypyc-{python}", f"{' and '.join(TOOLS)} cannot be fetched")
        scratch.rename(tools)
    with tempfile.TemporaryDirectory(prefix="cri-resmgr-mypyc-") as folder:
        work = Path(folder)
        names = modules(root)
        for name in _with_imports(root, [name for found in names.values() for name in found]):
            for path in (name, *(str(parent / "__init__.py") for parent in list(Path(name).parents)[:-1])):
                if (root / path).is_file():
                    (work / path).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(root / path, work / path)
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(tools),
            "PYTHONHASHSEED": "0",
            # mypyc writes a library's headers beside it, and looks for them above.
            "CFLAGS": " ".join(f"-Ibuild/{part}" for part in PARTS),
            "LDFLAGS": "-s",
            # Debian's Python's. One that was built here (pyenv) would have its own folder searched for libraries.
            "LDSHARED": "gcc -shared -Wl,-O1 -Wl,-Bsymbolic-functions",
        }
        command = [interpreter, "-s", __file__, "--here"]
        count = sum(map(len, names.values()))
        say(f"compiling {count} modules for Python {python}, two minutes or so; kept for these sources")
        run(command, f"mypyc-{python}", f"mypyc failed for Python {python}", work, environment)
        scratch = made.with_name(f"{made.name}.new")
        shutil.rmtree(scratch, ignore_errors=True)
        for path in _made_below(work):
            target = scratch / path.relative_to(work)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            target.chmod(0o644)
        scratch.rename(made)


def _build_here() -> None:
    """In the folder that a build works in, by the Python it is for."""
    # Only there (PYTHONPATH).
    from mypyc.build import mypycify
    from setuptools.dist import Distribution

    names = modules(Path())
    groups = [(found, library_of(part).replace("/", ".")) for part, found in names.items()]
    paths = [*MYPY, *(name for found in names.values() for name in found)]
    extensions = mypycify(paths, opt_level="3", debug_level="0", multi_file=True, separate=groups)
    built = Distribution({"name": "cri-resmgr", "ext_modules": extensions}).get_command_obj("build_ext")
    built.inplace = True
    built.parallel = os.cpu_count()
    built.ensure_finalized()
    built.run()


def main(arguments: list[str]) -> int:
    """Compile, or take away what was compiled; print what there is."""
    parser = argparse.ArgumentParser(prog="compiled.py", description=__doc__)
    here = "{}.{}".format(*sys.version_info)
    parser.add_argument("--python", default=here, help=f"by default that which runs this: {here}")
    parser.add_argument("--remove", action="store_true", help="take them away")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("folder", nargs="?", type=Path, default=REPOSITORY)
    options = parser.parse_args(arguments)
    if options.here:
        _build_here()
    elif options.remove:
        remove(options.folder)
    else:
        remove(options.folder)
        said = compile_modules(options.folder, options.python, options.folder)
        if not said:
            (options.folder / STAMP).write_text(f"{digest(options.folder, options.python)}\n")
        print(said or f"{', '.join(PARTS)} are compiled for Python {options.python}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
