"""One boot of a virtual machine: QEMU as a child, what the guest's checks say as they end, and how long it may be silent."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tests.vm import arm
from tests.vm.acpi import clocks_table
from tests.vm.image import Image
from tests.vm.machine import Shape, cpu_arguments, kernel_words
from tests.vm.qemu.build import kept
from tests.vm.rootfs import TARGET
from tests.vm.verdicts import END_MARK, Verdict, read_verdict

#: Between two lines of a guest, against 190 s of the longest check measured. A limit of the whole boot would be one of how
#: many checks there are, and of how slow the machine is.
SILENCE_S = 600
QEMU = "qemu-system-x86_64"
#: Of a QEMU that is built here: where Debian has what a guest is started with, and devices that it lacks.
OF_OWN_QEMU = ("-L", "/usr/share/seabios", "-L", "/usr/share/qemu", "-vga", "none", "-parallel", "none")


@dataclass
class VirtualMachine:
    """A guest that does its job. ``verdict`` waits; use it as a context manager, or nobody ends QEMU."""

    shape: Shape
    image: Image
    job: Path
    words: tuple[str, ...] = ()
    silence_s: float = SILENCE_S
    accelerator: str = "tcg,thread=multi"
    #: Further words for QEMU.
    more: tuple[str, ...] = ()
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    #: Everything else it said, and how the job ended ("" while it runs).
    lines: list[str] = field(default_factory=list)
    end: str = ""

    def __enter__(self) -> VirtualMachine:
        self._folder = Path(tempfile.mkdtemp(prefix="crvm-"))
        self._rest = b""
        with (self._folder / "qemu").open("wb") as problems:
            self._qemu: subprocess.Popen[bytes] = subprocess.Popen(
                self._command(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=problems
            )
        return self

    def __exit__(self, *_exception: object) -> None:
        self._qemu.kill()
        self._qemu.wait()
        self._output.close()
        shutil.rmtree(self._folder)

    @property
    def pid(self) -> int:
        """QEMU's."""
        return self._qemu.pid

    def verdict(self, name: str) -> Verdict:
        """How a check ended, once it has; a failed one that says so if it did not come to it."""
        while name not in self.verdicts:
            if not self._read():
                return Verdict(name, False, 0.0, self._why_not())
        return self.verdicts[name]

    def finish(self) -> str:
        """Wait for the end of the job; returns how it ended as systemd says it: "success exited 0"."""
        while self._read():
            pass
        return self.end

    # --- what it says

    @property
    def _output(self) -> IO[bytes]:
        assert self._qemu.stdout is not None
        return self._qemu.stdout

    def _read(self) -> bool:
        """Take in what comes next; False if nothing will come."""
        if not select.select([self._output], [], [], self.silence_s)[0]:
            self.end = self.end or f"silent for {self.silence_s:g} s"
            self._qemu.kill()
            return False
        data = os.read(self._output.fileno(), 1 << 16)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take(line.decode(errors="replace").rstrip("\r"))
        return data != b""

    def _take(self, line: str) -> None:
        verdict = read_verdict(line)
        if verdict is not None:
            self.verdicts[verdict.name] = verdict
        elif line.startswith(END_MARK):
            self.end = line[len(END_MARK) :]
        else:
            self.lines.append(line)

    def _why_not(self) -> str:
        said = "\n".join(self.lines[-40:])
        console = self._folder / "console"
        # QEMU makes none if it refuses its arguments.
        shown = console.read_text(errors="replace")[-2000:] if console.exists() else ""
        problems = _without_noise((self._folder / "qemu").read_text(errors="replace"))
        ended = self.end or "without a result"
        return (
            f"The guest ended before this check: {ended}.\n{said}\n--- console\n{shown}\n--- QEMU\n{problems}"
        )

    # --- QEMU

    def _command(self) -> list[str]:
        if self.shape.architecture == "arm64":
            machine = ["-machine", arm.MACHINE, "-dtb", str(arm.write_device_tree(self.shape, self._folder))]
            program, processors = arm.QEMU, [*machine, *arm.cpu_arguments(self.shape)]
            # It has one serial line; the job's is on PCI.
            console, job_port, job_line = "ttyAMA0", "ttyS0", ("-device", "pci-serial,chardev=job")
        else:
            program, processors = QEMU, cpu_arguments(self.shape)
            if self.shape.has_resctrl:
                program, processors = str(kept()), [*OF_OWN_QEMU, *processors]
            console, job_port, job_line = "ttyS0", "ttyS1", ("-serial", "chardev:job")
        words = [
            f"console={console} vm.job={job_port}",
            "panic=-1 quiet random.trust_cpu=on apparmor=0 mitigations=off systemd.show_status=0",
            f"systemd.unit={TARGET}",
            *kernel_words(self.shape),
            *self.words,
        ]
        disk = f"file={self.image.disk},if=none,id=disk,format=raw,readonly=on,cache=unsafe"
        job = f"local,path={self.job},mount_tag=job,security_model=none,readonly=on,multidevs=remap"
        firmware: tuple[str, ...] = ()
        if self.shape.has_clocks:
            (self._folder / "clocks").write_bytes(clocks_table(self.shape))
            firmware = "-acpitable", f"file={self._folder / 'clocks'}"
        return [
            *(program, "-accel", self.accelerator, *self.more, *processors, *firmware),
            *("-drive", disk, "-device", "virtio-blk-pci,drive=disk", "-virtfs", job),
            # A disk of zeros, for what is done to disks.
            *("-blockdev", "driver=null-co,node-name=spare,size=67108864,read-zeroes=on"),
            *("-device", "virtio-blk-pci,drive=spare"),
            *(
                "-kernel",
                str(self.image.kernel),
                "-initrd",
                str(self.image.initramfs),
                "-append",
                " ".join(words),
            ),
            *("-display", "none", "-monitor", "none", "-net", "none", "-no-reboot"),
            *("-serial", f"file:{self._folder / 'console'}"),
            *("-chardev", "stdio,id=job,signal=off", *job_line),
        ]


def _without_noise(problems: str) -> str:
    """QEMU complains of each CPU that TOPOEXT and others cannot be had; the first is had all the same."""
    lines = [line for line in problems.splitlines() if "TCG doesn't support" not in line]
    return "\n".join(lines[-20:])
