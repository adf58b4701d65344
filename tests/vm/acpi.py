"""A table of ACPI by which a guest's CPUs have clocks: frequencies and idle states that the kernel's own drivers take. Pure.

Linux binds acpi-cpufreq to processors with _PCT (where to write a state), _PSS (the states) and _PSD (which share a clock),
and acpi_idle to those with _CST. What is written to the ports goes nowhere: a guest is as fast as it is, and all else
(requests, limits, governors, refusals) is the kernel's. QEMU calls a processor \\_SB.CPUS.CXXX, by its place among all.

The few words of AML are those of the ACPI specification, chapter 20.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.vm.machine import CCX_PLACES, CORE_PLACES, THREAD_PLACES, Shape

#: MHz, the highest first.
FREQUENCIES = (3000, 2500, 2000, 1200)
#: Latency in µs, power in mW of C1, C2 and C3. All are HLT: reading a port, as deeper ones are entered, ends at once in a
#: guest, which would spin.
_IDLE = ((1, 1000), (20, 500), (100, 100))
_C1 = 1
#: Of no device of QEMU's.
_PORT = 0x620
#: Who changes a shared clock (ACPI 8.4.5.5): one of them all, or the hardware by what each of them wants.
_SOFTWARE_ANY, _HARDWARE = 0xFD, 0xFE
_FIXED_HARDWARE, _SYSTEM_IO = 0x7F, 0x01
_NAME, _SCOPE, _BUFFER, _PACKAGE = b"\x08", b"\x10", b"\x11", b"\x12"


def clocks_table(shape: Shape) -> bytes:
    """An SSDT for ``-acpitable file=``. CPUs of a CCX share a clock: of the first socket's they have one cpufreq policy, of
    the others each CPU has its own."""
    found = b""
    for number, place in enumerate(_places(shape)):
        ccx = number // shape.cpus_per_ccx
        by = _SOFTWARE_ANY if number < shape.cpus // shape.sockets else _HARDWARE
        found += _scope(f"C{place:03X}", _processor(ccx, by, shape.cpus_per_ccx))
    return _header(b"SSDT", found)


def _places(shape: Shape) -> Iterable[int]:
    """The processors that there are, among all places (tests/vm/machine.py)."""
    for socket in range(shape.sockets):
        for ccx in range(shape.ccx_per_node * shape.nodes_per_socket):
            for core in range(shape.cores_per_ccx):
                for thread in range(shape.threads):
                    yield ((socket * CCX_PLACES + ccx) * CORE_PLACES + core) * THREAD_PLACES + thread


def _processor(domain: int, coordination: int, sharers: int) -> bytes:
    control = _register(_SYSTEM_IO, 8, _PORT)
    # Frequency, power, latencies, what is written and what is then read.
    states = [_numbers(mhz, mhz, 10, 10, n, n) for n, mhz in enumerate(FREQUENCIES, 1)]
    idle = [
        _package([_register(_FIXED_HARDWARE, 0, 0), *map(_number, (_C1, latency, power))])
        for latency, power in _IDLE
    ]
    return b"".join(
        (
            _named("_PCT", _package([control, control])),
            _named("_PSS", _package(states)),
            _named("_PSD", _package([_numbers(5, 0, domain, coordination, sharers)])),
            _named("_CST", _package([_number(len(idle)), *idle])),
        )
    )


# ---------------------------------------------------------------------- AML


def _header(signature: bytes, body: bytes) -> bytes:
    """With a revision of 2, and a checksum that makes the sum of all bytes 0."""
    table = signature + (36 + len(body)).to_bytes(4, "little") + b"\x02\x00" + b"VMTEST" + b"CLOCKS  "
    table += (1).to_bytes(4, "little") + b"TEST" + (1).to_bytes(4, "little") + body
    return table[:9] + bytes((-sum(table) % 256,)) + table[10:]


def _length(rest: int) -> bytes:
    """Of a thing with so many bytes behind this; it counts itself."""
    if rest + 1 < 64:
        return bytes((rest + 1,))
    whole = rest + 2
    assert whole < 1 << 12
    return bytes((0x40 | whole & 0xF, whole >> 4))


def _scope(name: str, body: bytes) -> bytes:
    inside = b"\\\x2f\x03_SB_CPUS" + name.encode() + body
    return _SCOPE + _length(len(inside)) + inside


def _named(name: str, value: bytes) -> bytes:
    return _NAME + name.encode() + value


def _package(items: Sequence[bytes]) -> bytes:
    inside = bytes((len(items),)) + b"".join(items)
    return _PACKAGE + _length(len(inside)) + inside


def _numbers(*values: int) -> bytes:
    return _package([_number(value) for value in values])


def _number(value: int) -> bytes:
    return b"\x0c" + value.to_bytes(4, "little")


def _register(space: int, width: int, address: int) -> bytes:
    """A buffer with a generic register descriptor and an end tag."""
    descriptor = b"\x82\x0c\x00" + bytes((space, width, 0, 0)) + address.to_bytes(8, "little") + b"\x79\x00"
    inside = _number(len(descriptor)) + descriptor
    return _BUFFER + _length(len(inside)) + inside
