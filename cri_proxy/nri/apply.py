"""A merged adjustment applied to a CreateContainerRequest, as far as CRI can say it.

The request is never rebuilt: entries that go, or that something else takes the place of, are cut out of its bytes,
and what is new is appended. What the request says already as asked for is left alone. The result depends on the request
and the adjustment: for another container of the same request it is the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.config.options.nri_capabilities import Inexpressible, Site, is_rejected
from cri_proxy.cri.messages import UnreadableRequest, parse
from cri_proxy.nri.cri_translation import express
from cri_proxy.nri.draft import Asked, Draft
from cri_proxy.nri.files import write_annotations, write_cdi_devices, write_devices, write_mounts
from cri_proxy.nri.process import write_args, write_env, write_oom_score, write_seccomp
from cri_proxy.nri.seccomp import SeccompFile
from cri_proxy.nri.unsupported import report_unsaid
from cri_proxy.text.protobuf_bytes import NotProtobuf


@dataclass(frozen=True)
class Applied:
    """What to do for an adjustment.

    ``request`` is the whole request, changed; the same bytes if there is nothing to change. Where the container has
    been created with the request as it was, ``resources`` is all that an update must set, unless ``recreate``: then
    something is asked for that only a create can carry. ``rejected`` not empty: the container must not be.
    """

    request: bytes
    recreate: bool
    resources: cri.LinuxContainerResources
    rejected: tuple[Inexpressible, ...]
    warned: tuple[Inexpressible, ...]
    #: To be written before the request is sent.
    seccomp: Optional[SeccompFile]


def apply(request: bytes, asked: Asked, site: Site) -> Applied:
    """Apply what plugins asked for to the request that the container was, or is to be, created with.

    :raises UnreadableRequest: the bytes are not a CreateContainerRequest.
    """
    draft = Draft(parse(cri.CreateContainerRequest, request).config, asked, site)
    # 1. What only a create can carry.
    write_annotations(draft)
    write_env(draft)
    write_args(draft)
    write_mounts(draft)
    write_devices(draft)
    write_cdi_devices(draft)
    write_oom_score(draft)
    seccomp = write_seccomp(draft)
    # 2. Resources, which an update can set as well, unless one is to be unset.
    resources = _resources(draft)
    recreate = draft.is_changed
    if resources.ByteSize():
        draft.added.linux.resources.MergeFrom(resources)
    for entry in resources.hugepage_limits:
        draft.cut_entries("linux.resources.hugepage_limits", _has_page_size(entry.page_size))
    # 3. What cannot be had.
    report_unsaid(draft)
    try:
        changed = draft.write(request)
    except NotProtobuf as error:
        raise UnreadableRequest(f"{len(request)} bytes are not a CreateContainerRequest: {error}") from None
    found = tuple(draft.found)
    return Applied(
        request=changed,
        recreate=recreate,
        resources=resources,
        rejected=tuple(each for each in found if is_rejected(each, site)),
        warned=tuple(each for each in found if not is_rejected(each, site)),
        seccomp=seccomp,
    )


def _resources(draft: Draft) -> cri.LinuxContainerResources:
    """What of the resources asked for the request does not say already."""
    asked, had = draft.asked.adjust.linux.resources, draft.config.linux.resources
    expressed = express(asked, draft.site, draft.report, draft.asked.container.linux.resources)
    linux = expressed.linux
    for name in expressed.emptied:
        if getattr(had, name):
            draft.cut_entries(f"linux.resources.{name}", _any)
    for field, value in linux.ListFields():
        if isinstance(value, (int, str)) and getattr(had, field.name) == value:
            linux.ClearField(field.name)
    # An update with a limit alone sets the swap limit to it as well (containerd, opts.WithResources).
    if linux.memory_limit_in_bytes and had.memory_swap_limit_in_bytes and not asked.memory.HasField("swap"):
        linux.memory_swap_limit_in_bytes = max(had.memory_swap_limit_in_bytes, linux.memory_limit_in_bytes)
    limits = [limit for limit in linux.hugepage_limits if limit not in had.hugepage_limits]
    del linux.hugepage_limits[:]
    linux.hugepage_limits.extend(limits)
    for key, value in dict(linux.unified).items():
        if key in had.unified and had.unified[key] == value:
            del linux.unified[key]
    return linux


def _any(_content: bytes) -> bool:
    return True


def _has_page_size(page_size: str) -> Any:
    return lambda content: cri.HugepageLimit.FromString(content).page_size == page_size
