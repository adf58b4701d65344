"""What plugins ask of a container's process, written into a create request: environment, arguments, seccomp."""

from __future__ import annotations

from typing import Optional

from cri_api import nri_v1alpha1_pb2 as nri
from cri_api import runtime_v1_pb2 as cri
from cri_proxy.nri.draft import Draft
from cri_proxy.nri.merge import REMOVAL
from cri_proxy.nri.seccomp import SeccompFile, seccomp_file


def write_env(draft: Draft) -> None:
    """Variables set and removed.

    One that the image brings cannot be removed, only set to nothing; what the image says in the place of one that
    the request brings cannot be known, and comes to light.
    """
    asked = draft.asked.adjust.env
    sets = {entry.key: entry.value for entry in asked if not entry.key.startswith(REMOVAL)}
    removed = [entry.key[len(REMOVAL) :] for entry in asked if entry.key.startswith(REMOVAL)]
    shown = {text.partition("=")[0] for text in draft.asked.container.env}
    for key in removed:
        if key in sets:
            continue
        found = [env for env in draft.config.envs if env.key == key]
        draft.cut_equal("envs", found)
        if not found and key in shown:
            draft.report("env_removal", nri.Env, key, "the image brings it; it is set to nothing instead")
            draft.added.envs.add(key=key, value=b"")
    for key, value in sets.items():
        draft.replace(
            "envs",
            cri.KeyValue(key=key, value=value.encode()),
            [env for env in draft.config.envs if env.key == key],
        )


def write_args(draft: Draft) -> None:
    """The whole command line: ``command`` takes the place of the image's entrypoint and of its arguments."""
    args = list(draft.asked.adjust.args)
    if args and (args != [*draft.config.command, *draft.config.args] or not draft.config.command):
        for field in ("command", "args"):
            if getattr(draft.config, field):
                draft.cut_entries(field, lambda _content: True)
        draft.added.command.extend(args)


def write_oom_score(draft: Draft) -> None:
    linux = draft.asked.adjust.linux
    if not linux.HasField("oom_score_adj"):
        return
    score = linux.oom_score_adj.value
    if score != draft.config.linux.resources.oom_score_adj:
        if score:
            draft.added.linux.resources.oom_score_adj = score
        else:
            draft.cut_entries("linux.resources.oom_score_adj", lambda _content: True)


def write_seccomp(draft: Draft) -> Optional[SeccompFile]:
    """A profile of its own for the container, and the file that it is to be in."""
    linux, context = draft.asked.adjust.linux, draft.config.linux.security_context
    if (
        not linux.HasField("seccomp_policy")
        or linux.seccomp_policy == draft.asked.container.linux.seccomp_policy
    ):
        return None
    if context.privileged:
        why = "the container is privileged, and runtimes give such ones no seccomp profile"
        draft.report("seccomp_policy", nri.SeccompPolicy, "", why)
        return None
    file = seccomp_file(linux.seccomp_policy, draft.site.seccomp_folder)
    profile = cri.SecurityProfile(profile_type=cri.SecurityProfile.Localhost, localhost_ref=file.path)
    if context.seccomp != profile:
        draft.added.linux.security_context.seccomp.CopyFrom(profile)
    return file
