"""What a value of an option may be: each check reads the text that was written into a typed value, and back.

A check is a voluptuous validator: called with what was written it returns the value or raises
``vol.Invalid``, whose message, if any, says more than ``expected`` does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import field
from ipaddress import ip_network
from typing import Any, Optional
from urllib.parse import urlsplit

import voluptuous as vol

from cri_proxy.text.quantity import BadQuantity, parse_bytes, parse_milli
from cri_proxy.text.sources import Raw
from policies.frozen import frozen
from policies.machine.cpus import MAX_ID, NO_CPUS, BadCpuList, format_cpus, parse_cpus

MAX_DURATION_S = 24 * 3600.0
#: sun_path of a unix socket has 108 bytes, the last of them a NUL (linux/un.h).
MAX_SOCKET_BYTES = 107
#: Every second CPU of 1024 is a list of 2,000 characters; thousands of wide ranges would take a minute.
MAX_TEXT = 2048

#: Each is a comparison for every address that the kernel's program looks at.
MAX_NETWORKS = 16
#: More names than a policy of the cluster needs in one list.
MAX_NAMES = 256

TRUE_WORDS, FALSE_WORDS = ("true", "yes", "on"), ("false", "no", "off")

_DECIMAL = re.compile(r"[0-9]{1,16}(\.[0-9]{1,16})?([eE][+-]?[0-9]{1,2})?")
_INTEGER = re.compile(r"-?[0-9]{1,9}")
_NUMBER = r"([0-9]{1,9}(?:\.[0-9]{0,9})?)"
_SECONDS = re.compile(_NUMBER)
_DURATION = re.compile(rf"(?:{_NUMBER}h)?(?:{_NUMBER}m)?(?:{_NUMBER}s)?(?:{_NUMBER}ms)?")
_UNITS_S = (3600.0, 60.0, 1.0, 0.001)
_LISTEN = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
#: A list in the kernel's format, as schemas have it: Go's expressions.
_RANGES = "[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*"
#: A selector of containers, as schemas have it: Go's expressions.
_SELECTOR = re.compile(r"(namespace|balloon)/[!-~]+|qos/(Guaranteed|Burstable|BestEffort)")
_PART = r"[0-9]{1,9}(\.[0-9]{0,9})?"
#: Texts that YAML takes for themselves without quotes.
_PLAIN = re.compile(r"[A-Za-z0-9/][A-Za-z0-9/._:-]*[A-Za-z0-9]|[A-Za-z0-9/]")


@frozen
class Check:
    """One kind of value. ``expected`` in words; ``read`` takes what was written, ``write`` gives it; ``unit``, if any.

    ``schema``: the same in terms of Kubernetes' structural schemas, for options that a policy of the cluster may set.
    It may refuse more than ``read`` does (a number in quotes), never less than what is safe.
    """

    expected: str
    read: Callable[[Raw], Any]
    write: Callable[[Any], str]
    schema: Mapping[str, Any] = field(default_factory=dict, compare=False)
    unit: str = ""

    def __call__(self, raw: Raw) -> Any:
        return self.read(raw)


@frozen
class CpuConstraint:
    """CPUs as Intel's files name them: a quantity, a set, or a cgroup whose set the shell looks up.

    ``cgroup`` is the path as given: absolute, or below kubelet's cgroup root. ``all_but``: ``cpus`` are those that
    are not meant. All three empty = not given.
    """

    milli: int = 0
    cpus: Optional[frozenset[int]] = None
    cgroup: str = ""
    all_but: bool = False

    def __bool__(self) -> bool:
        return bool(self.milli or self.cpus is not None or self.cgroup)

    def of(self, online: frozenset[int]) -> Optional[frozenset[int]]:
        """The set it names on a machine with these CPUs; None where it names none."""
        return online - self.cpus if self.all_but and self.cpus is not None else self.cpus


def list_of(items: Mapping[str, Any], most: int) -> dict[str, Any]:
    """The schema of a list that is written as a whole."""
    return {"type": "array", "items": dict(items), "maxItems": most, "x-kubernetes-list-type": "atomic"}


def int_or_text(pattern: str, least: int, most: int) -> dict[str, Any]:
    """The schema of a value that is a number or, in quotes or with a unit, a text."""
    return {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "x-kubernetes-int-or-string": True,
        "pattern": pattern,
        "minimum": least,
        "maximum": most,
        "maxLength": MAX_TEXT,
    }


def one_of(*values: str) -> Check:
    """One word of several. YAML's ``false`` is read as "off" where there is one: tools rewrite off to it."""

    def read(raw: Raw) -> str:
        text = _text(raw)
        if text not in values and text.lower() == "false" and "off" in values:
            return "off"
        if text not in values:
            raise vol.Invalid("")
        return text

    schema = {"type": "string", "enum": list(values)}
    return Check(f"{', '.join(values[:-1])} or {values[-1]}", read, write_text, schema)


def flag() -> Check:
    """A bool, from true or false, and what YAML 1.1 takes for them."""

    def read(raw: Raw) -> bool:
        word = _text(raw).lower()
        if word not in TRUE_WORDS + FALSE_WORDS:
            raise vol.Invalid("")
        return word in TRUE_WORDS

    return Check("true or false", read, lambda value: "true" if value else "false", {"type": "boolean"})


def whole(least: int, most: int, unit: str = "") -> Check:
    """An int in a range, both ends included."""

    def read(raw: Raw) -> int:
        text = _text(raw)
        if not _INTEGER.fullmatch(text) or not least <= int(text) <= most:
            raise vol.Invalid("")
        return int(text)

    schema = {"type": "integer", "minimum": least, "maximum": most}
    return Check(f"a whole number from {least} to {most}", read, str, schema, unit)


def decimal(least: float, most: float, unit: str = "") -> Check:
    """A float in a range, both ends included; plain or with an exponent."""

    def read(raw: Raw) -> float:
        text = _text(raw)
        if not _DECIMAL.fullmatch(text) or not least <= float(text) <= most:
            raise vol.Invalid("")
        return float(text)

    schema = {"type": "number", "minimum": least, "maximum": most}
    return Check(f"a number from {least:g} to {most:g}", read, lambda value: f"{value:g}", schema, unit)


def subset(*values: str) -> Check:
    """A frozenset of some of these words; a single one needs no list."""

    def read(raw: Raw) -> frozenset[str]:
        found = frozenset(_texts(raw))
        if not found <= frozenset(values):
            raise vol.Invalid("")
        return found

    expected = f"a list of any of {' and '.join(values)}; [] for none"
    schema = list_of({"type": "string", "enum": list(values)}, len(values))
    return Check(expected, read, lambda found: write_list(tuple(v for v in values if v in found)), schema)


def duration() -> Check:
    """Seconds as a float, from 300, "250ms", "5m" or "1h30m"."""
    expected = "a duration above 0 and up to 24h, such as 300 (seconds), 250ms, 5m or 1h30m"
    schema = int_or_text(rf"^({_PART}|({_PART}h)?({_PART}m)?({_PART}s)?({_PART}ms)?)$", 1, 86_400)
    return Check(expected, _read_duration, write_duration, {**schema, "minLength": 1}, "seconds")


def matching(expected: str, pattern: str, most: int = MAX_TEXT) -> Check:
    """A text of a certain form, which the pattern says in Go's expressions; ``most`` characters of it in a policy."""
    form = re.compile(pattern)

    def read(raw: Raw) -> str:
        text = _text(raw)
        if not form.fullmatch(text):
            raise vol.Invalid("")
        return text

    schema = {"type": "string", "maxLength": most, "pattern": f"^({pattern})$"}
    return Check(expected, read, write_text, schema)


def names() -> Check:
    """A tuple of names or globs; a single one needs no list."""
    schema = list_of({"type": "string", "minLength": 1, "maxLength": 253, "pattern": r"^[!-~]+$"}, MAX_NAMES)
    return Check('a list of names or globs, such as [kube-system, "ops-*"]', _read_names, write_list, schema)


def selectors() -> Check:
    """A tuple of selectors of containers; a single one needs no list."""

    def read(raw: Raw) -> tuple[str, ...]:
        found = _read_names(raw)
        bad = next((each for each in found if not _SELECTOR.fullmatch(each)), None)
        if bad is not None:
            raise vol.Invalid(f"{bad!r} is none" if len(found) > 1 else "")
        return found

    items = {"type": "string", "minLength": 1, "maxLength": 253, "pattern": f"^({_SELECTOR.pattern})$"}
    expected = "a list of namespace/GLOB, qos/Guaranteed, qos/Burstable, qos/BestEffort or balloon/TYPE, or [] for none"
    return Check(expected, read, write_list, list_of(items, MAX_NAMES))


def path() -> Check:
    """An absolute path."""
    return Check("an absolute path", lambda raw: _path(_text(raw)), write_text)


def empty_or_path() -> Check:
    """An absolute path, or "" for none."""

    def read(raw: Raw) -> str:
        text = _text(raw)
        return _path(text) if text else ""

    return Check('an absolute path, or "" for none', read, write_text)


def socket_path() -> Check:
    """The absolute path of a unix socket."""
    expected = f"an absolute path of at most {MAX_SOCKET_BYTES} bytes"
    return Check(expected, lambda raw: _socket(_text(raw)), write_text)


def socket_paths() -> Check:
    """A tuple of such paths."""
    expected = f"a list of absolute paths of at most {MAX_SOCKET_BYTES} bytes each"
    return Check(expected, lambda raw: tuple(_socket(item) for item in _texts(raw)), write_list)


def http_url() -> Check:
    """An address that something is sent to."""
    expected = 'http://HOST:PORT/PATH or https://HOST/PATH, or "" for none'

    def read(raw: Raw) -> str:
        text = _text(raw)
        try:
            url = urlsplit(text)
            is_whole = url.scheme in ("http", "https") and url.hostname and url.path and url.port != 0
        except ValueError:  # a port that is none
            is_whole = False
        if text and (
            not is_whole or url.query or url.fragment or url.username or not text.isprintable() or " " in text
        ):
            raise vol.Invalid("")
        return text

    return Check(expected, read, write_text)


def endpoint(empty: str) -> Check:
    """The path of a socket to connect to, also when given as a ``unix:`` URL; ``empty``: what "" means."""

    def read(raw: Raw) -> str:
        text = _text(raw)
        for scheme in ("unix://", "unix:"):
            if text.startswith(scheme):
                return _socket(text[len(scheme) :])
        return _socket(text) if text else ""

    expected = f'unix:///PATH or an absolute path of at most {MAX_SOCKET_BYTES} bytes, or "" for {empty}'
    return Check(expected, read, write_text)


def listen() -> Check:
    """A TCP address to listen on; "" = do not."""

    def read(raw: Raw) -> str:
        text = _text(raw)
        match = _LISTEN.fullmatch(text)
        if text and not (match and 0 < int(match[2]) < 65536):
            raise vol.Invalid("")
        return text

    return Check('HOST:PORT such as 127.0.0.1:8891 or "[::1]:8891", or "" for off', read, write_text)


def networks() -> Check:
    """A tuple of networks with the length of their prefix, IPv4 and IPv6."""

    def read(raw: Raw) -> tuple[str, ...]:
        texts = _texts(raw)
        if len(texts) > MAX_NETWORKS:
            raise vol.Invalid(f"there are {len(texts)}, at most {MAX_NETWORKS} are possible")
        for text in texts:
            try:
                ip_network(text if "/" in text else "", strict=False)
            except ValueError:
                raise vol.Invalid(f"{text!r} is none") from None
        return texts

    return Check("a list of networks such as [10.244.0.0/16], or [] for none", read, write_list)


def nodes() -> Check:
    """A frozenset of NUMA nodes, from a list in the kernel's format."""
    schema = int_or_text(rf"^({_RANGES})?$", 0, MAX_ID)
    expected = 'NUMA nodes such as 2 or 2-3,5, or "" for none'
    return Check(expected, lambda raw: _cpus(_text(raw)), _write_nodes, schema, "NUMA nodes")


def cpus(none_is: str, may_be_zero: bool) -> Check:
    """A CpuConstraint, in Intel's forms; ``none_is``: what "" means."""

    def read(raw: Raw) -> CpuConstraint:
        text = _text(raw)
        found = _constraint(text)
        if text and not found and not may_be_zero:
            raise vol.Invalid("no CPU would be left")
        return found

    forms = (
        "a quantity such as 750m or 4, a cpuset such as cpuset:0-3 or 0-3,8, all others with exclude-cpuset:0-3, "
        "a cgroup such as cgroup:/system"
    )
    # A cgroup is a path: a policy of the cluster names none.
    schema = int_or_text(
        rf"^([0-9]{{1,9}}(\.[0-9]{{1,9}})?m?|((exclude-)?cpuset:)?{_RANGES})?$", 0, MAX_ID + 1
    )
    return Check(f'{forms}, or "" for {none_is}', read, _write_constraint, schema, "CPUs")


def memory() -> Check:
    """Bytes, from a quantity; 0 = none."""

    def read(raw: Raw) -> int:
        text = _text(raw)
        try:
            return parse_bytes(text) if text else 0
        except BadQuantity:
            raise vol.Invalid("") from None

    def write(size: int) -> str:
        units = [(f"{unit}i", 1024**power) for power, unit in enumerate("KMGT", 1)]
        unit, factor = next(((u, f) for u, f in reversed(units) if size and size % f == 0), ("", 1))
        return f"{size // factor}{unit}"

    schema = int_or_text(r"^([0-9]{1,15}(\.[0-9]{1,9})?([kMGTPE]|[KMGTPE]i)?)?$", 0, 2**53)
    return Check('memory such as 2Gi or 500M, or "" for none', read, write, schema, "bytes")


def section(expected: str) -> Check:
    """A section of another program's, which is read as a whole elsewhere and shown as ``written``; None = none.

    Its schema lets everything pass: a value that may be a text or a mapping has none.
    """

    def read(raw: Raw) -> None:
        raise vol.Invalid("")

    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "maxProperties": 8}
    return Check(expected, read, lambda found: "{}" if found is None else str(found.written), schema)


def _text(raw: Raw) -> str:
    if not isinstance(raw, str):
        raise vol.Invalid("")
    if len(raw) > MAX_TEXT:
        raise vol.Invalid(f"it has {len(raw)} characters")
    return raw.strip()


def _texts(raw: Raw) -> tuple[str, ...]:
    if isinstance(raw, str):
        return (raw.strip(),)
    if not isinstance(raw, tuple):
        raise vol.Invalid("")
    return tuple(item.strip() for item in raw)


def _read_names(raw: Raw) -> tuple[str, ...]:
    found = _texts(raw)
    if not all(name and name.isprintable() and " " not in name for name in found):
        raise vol.Invalid("")
    return found


def _read_duration(raw: Raw) -> float:
    text = _text(raw)
    bare = _SECONDS.fullmatch(text)
    match = None if bare else _DURATION.fullmatch(text)
    if bare:
        seconds = float(text)
    elif match and text:
        seconds = sum(float(number) * unit for number, unit in zip(match.groups(), _UNITS_S) if number)
    else:
        raise vol.Invalid("")
    if not 0 < seconds <= MAX_DURATION_S:
        raise vol.Invalid("")
    return seconds


def write_duration(seconds: float) -> str:
    """Seconds as a file would say them: "1h30m"."""
    rest_us = round(seconds * 1_000_000)
    parts = []
    for unit_us, unit in ((3_600_000_000, "h"), (60_000_000, "m"), (1_000_000, "s")):
        count, rest_us = divmod(rest_us, unit_us)
        if count:
            parts.append(f"{count}{unit}")
    if rest_us:
        parts.append(f"{rest_us / 1000:.3f}".rstrip("0").rstrip(".") + "ms")
    return "".join(parts) or f"{seconds:.9f}"


def _path(text: str) -> str:
    if not text.startswith("/") or not text.isprintable():
        raise vol.Invalid("")
    return text


def _socket(text: str) -> str:
    size = len(text.encode("utf-8", "replace"))
    if size > MAX_SOCKET_BYTES:
        raise vol.Invalid(f"it has {size} bytes")
    return _path(text)


def _cpus(text: str) -> frozenset[int]:
    try:
        return parse_cpus(text)
    except BadCpuList as error:
        raise vol.Invalid(str(error)) from None


def _constraint(text: str) -> CpuConstraint:
    kind, colon, rest = text.partition(":")
    if text.startswith("/") or (colon and kind == "cgroup"):
        return CpuConstraint(cgroup=_cgroup(rest if colon and kind == "cgroup" else text))
    if colon and kind == "exclude-cpuset":
        return CpuConstraint(cpus=_cpus(rest), all_but=True)
    if (colon and kind == "cpuset") or "-" in text or "," in text:
        found = _cpus(rest if colon and kind == "cpuset" else text)
        if not found:
            raise vol.Invalid("the cpuset names no CPU")
        return CpuConstraint(cpus=found)
    if not text:
        return CpuConstraint()
    try:
        milli = parse_milli(text)
    except BadQuantity:
        raise vol.Invalid("") from None
    if milli > (MAX_ID + 1) * 1000:
        raise vol.Invalid("no machine has as many")
    return CpuConstraint(milli=milli)


def _cgroup(text: str) -> str:
    if not text or not text.isprintable() or ".." in text.split("/"):
        raise vol.Invalid("a cgroup's path is not empty and has no ..")
    return text


def write_text(text: str) -> str:
    """A text as YAML has it, in quotes where it needs them."""
    return text if _PLAIN.fullmatch(text) and text.lower() != "null" else json.dumps(text, ensure_ascii=False)


def write_list(items: tuple[str, ...]) -> str:
    """Texts as a list of YAML's."""
    return "[" + ", ".join(write_text(item) for item in items) + "]"


def _write_nodes(found: frozenset[int]) -> str:
    return write_text(format_cpus(found or NO_CPUS))


def _write_constraint(found: CpuConstraint) -> str:
    if found.cgroup:
        return write_text(f"cgroup:{found.cgroup}")
    if found.cpus is not None:
        return write_text(f"{'exclude-' if found.all_but else ''}cpuset:{format_cpus(found.cpus)}")
    whole, rest = divmod(found.milli, 1000)
    return '""' if not found.milli else f"{found.milli}m" if rest else str(whole)
