"""The guard as a plugin of pytest: it begins before the first test and fails the run after the last."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any, Optional

import pytest

from cri_proxy import machine_root
from tests.guard import hook

FOLDER = Path(__file__).parent
#: Relative to the root of the machine.
WATCHED = ("etc", "etc/default", "run", "var/lib")
#: In site-packages; it does nothing unless the environment names the guard.
LINE = (
    f"import os; path = {str(FOLDER / 'hook.py')!r}; "
    f"os.environ.get({hook.VARIABLE!r}) and os.path.exists(path) and exec(open(path).read(), {{}})\n"
)


class Guard:
    """Of the process that has started the run; workers of pytest-xdist only have the hook, as every Python."""

    def __init__(self, root: Path) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="crg-"))
        self._folder.chmod(0o755)
        self._log = self._folder / "log"
        self._log.touch()
        self._log.chmod(0o666)  # daemons of some tests are another user's
        folders = [path for path in (root.resolve() / name for name in WATCHED) if path.is_dir()]
        identities = [f"{folder}={folder.stat().st_dev}.{folder.stat().st_ino}" for folder in folders]
        told = ":".join([str(self._log), *identities])
        self.unseen = [sentence for sentence in (_load_everywhere(), self._watch(told, folders)) if sentence]
        os.environ[hook.VARIABLE] = told
        os.environ.setdefault(machine_root.VARIABLE, str(self._folder / "root"))
        hook.begin()
        self._found: list[str] = []

    def _watch(self, told: str, folders: list[Path]) -> Optional[str]:
        command = [sys.executable, "-I", str(FOLDER / "watch.py"), str(self._log), str(os.getpid())]
        self._watcher = subprocess.Popen(
            [*command, f"{hook.VARIABLE}={told}", *map(str, folders)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._watcher.stdout is not None
        said = self._watcher.stdout.readline().strip()
        return None if said == "ready" else f"programs that are no Python of the tests ({said})"

    def end(self) -> list[str]:
        """What was opened, each line once."""
        self._watcher.communicate()
        found = list(dict.fromkeys(self._log.read_text().splitlines()))
        shutil.rmtree(self._folder)
        del os.environ[hook.VARIABLE]
        return found

    def pytest_report_header(self) -> Optional[str]:
        return (
            f"guard of the machine's own: it does not see {' and '.join(self.unseen)}"
            if self.unseen
            else None
        )

    @pytest.hookimpl(trylast=True)  # workers have ended then
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._found = self.end()
        if self._found and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._found:
            terminalreporter.section("the run has opened what is the machine's own", red=True)
            for line in self._found:
                terminalreporter.line(line)


def _load_everywhere() -> Optional[str]:
    """Have every Python of this environment load the hook; what is not seen if that cannot be."""
    place = Path(sysconfig.get_path("purelib")) / "cri_resmgr_guard.pth"
    with contextlib.suppress(OSError):
        if place.read_text() == LINE:
            return None
    try:
        with tempfile.NamedTemporaryFile("w", dir=place.parent, delete=False) as beside:
            beside.write(LINE)
        os.chmod(beside.name, 0o644)
        os.replace(beside.name, place)
    except OSError as error:
        return f"Pythons that tests start ({place.parent}: {error.strerror})"
    return None


def add_option(parser: pytest.Parser) -> None:
    parser.addoption(
        "--machine-root", type=Path, default="/", help="whose /etc, /run and /var/lib are guarded"
    )


def begin(config: pytest.Config) -> None:
    """Guard the run, in the process that has started it."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Guard(config.getoption("--machine-root")), "machine guard")
