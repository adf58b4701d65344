"""What the tests of the configuration share: one file read, and the expectations that sentences repeat."""

from __future__ import annotations

from typing import Any

import pytest

from cri_proxy.config.config import BadConfig, LoadedConfig, SettingsSource, read_config

DURATION = "expected a duration above 0 and up to 24h, such as 300 (seconds), 250ms, 5m or 1h30m"
NAMES = 'expected a list of names or globs, such as [kube-system, "ops-*"]'
SELECTORS = (
    "expected a list of namespace/GLOB, qos/Guaranteed, qos/Burstable, qos/BestEffort or balloon/TYPE, "
    "or [] for none"
)
CACHE_PART = 'expected a percentage ("30%"), ways ("2 bits") or a mask ("0x3")'
SOCKET = "expected an absolute path of at most 107 bytes"
HTTP_URL = 'expected http://HOST:PORT/PATH or https://HOST/PATH, or "" for none'
LISTEN = 'expected HOST:PORT such as 127.0.0.1:8891 or "[::1]:8891", or "" for off'
CPUS = (
    "expected a quantity such as 750m or 4, a cpuset such as cpuset:0-3 or 0-3,8, "
    "all others with exclude-cpuset:0-3, "
    'a cgroup such as cgroup:/system, or "" for'
)
RESERVED = "policy.ReservedResources.CPU"
AVAILABLE = "policy.AvailableResources.CPU"


def read(text: str, **options: Any) -> LoadedConfig:
    """A file "c.yaml" of this text, read."""
    return read_config([SettingsSource("c.yaml", text)], **options)


def errors_of(text: str, **options: Any) -> tuple[str, ...]:
    """The sentences with which such a file is refused."""
    with pytest.raises(BadConfig) as caught:
        read(text, **options)
    return caught.value.errors


def value_of(key: str, value: str) -> Any:
    """What the option is after a file that says ``key: value``."""
    return read(f"{key}: {value}").config[key]
