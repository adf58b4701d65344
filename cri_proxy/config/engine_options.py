"""What of the configuration the engine goes by."""

from __future__ import annotations

from cri_proxy.frozen import frozen


@frozen
class EngineOptions:
    """The options of the ``placement`` section that the engine reads; seconds, namespace globs, handler names."""

    restart_hold_s: float = 300.0
    finished_hold_s: float = 30.0
    doubt_s: float = 120.0
    distrust_s: float = 600.0
    unmanaged_namespaces: tuple[str, ...] = ()
    unmanaged_handlers: tuple[str, ...] = ()
    #: Containers that may be moved so that one fits; whether also those that own CPUs.
    max_moves: int = 4
    move_exclusive: bool = False
    #: A container that was moved for others, or by a plan, is not moved for others again before.
    cooldown_s: float = 600.0
    #: Whether traffic that was seen draws containers to each other; what a declared weight of 1 counts beside it.
    use_traffic: bool = True
    declared_weight: float = 10_000.0
