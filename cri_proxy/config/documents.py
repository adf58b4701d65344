"""Writes docs/configuration.md and the sample config.yaml from the table of options.

python -m cri_proxy.config.documents > docs/configuration.md
python -m cri_proxy.config.documents sample
"""

from __future__ import annotations

import sys
import textwrap
from itertools import groupby

from cri_proxy.config import compatibility
from cri_proxy.config.balloons import FIELDS, MEANINGLESS
from cri_proxy.config.checks import Check
from cri_proxy.config.options.table import OPTIONS, Option
from cri_proxy.config.sections.reading import PART
from cri_proxy.version import DOCUMENTS

COMMAND = "python -m cri_proxy.config.documents > docs/configuration.md"
_WIDTH = 100

_INTRO = """\
# Configuration

<!-- Written by `{command}`; a test compares. -->

cri-resmgr needs no configuration: every option has a default. Where one is wanted, it is looked for in this
order; what comes later wins, key by key:

1. the defaults below,
2. `/etc/cri-resmgr/fallback.cfg` (or the file of `--fallback-config`), as for Intel's cri-resource-manager,
3. `/etc/cri-resmgr/config.yaml`, shipped with every line commented,
4. the cluster's policy, where the node's agent has handed one over,
5. the file of `--force-config`,
6. flags of the command line.

All files have the same format and may use every option. `cri-resmgr config show` prints each value with the
file and line it comes from; `cri-resmgr config check FILE` reads a file without using it, and takes what is
likely a mistake (an unknown key, a key given twice) for an error; `cri-resmgr config check FILE --diff` also
says which containers would move if the running daemon read that file in the place of its own.

**Changes.** An option that is *live* is applied by a reload (`systemctl reload cri-resource-manager`; of the NRI
plugin: `cri-resmgr-nri`), also `policy.Active`; the others wait for a restart. Those that are the *observer's* are
read by `cri-resmgr-observer` only, which has a reload and a restart of its own. Containers that run keep their
places as long as these can be had: a change moves nothing that need not move.

**The cluster's policy** sets only what says so below: placement, and the weights of affinity. A policy with any other
key is refused as a whole, and so is one whose values do not fit this node (more reserved CPUs than it has); then
nothing changes, and `cri-resmgr status` has the sentence. The policy counts after `config.yaml`, whose lines are the
same on all nodes of a package, and before `--force-config`, by which a node is kept as it is. It stays over restarts.
`config show` names it as the origin of a value; `cri-resmgr config cluster-policy` shows all of it, `--clear` takes it
off and lets no other in until `--accept`. The observer has its part of a policy with its next sample.

**Sockets and directories** belong into `config.yaml`. Flags of the service (`CONFIG_OPTIONS`: `--relay-socket`,
`--state-dir`, `--force-config`, ...) are not seen by commands, nor by the observer, nor while a package is removed.
Another `relay.socket` needs a drop-in for `cri-resource-manager.socket` with its `ListenStream=`.

**An invalid file** never takes the node down. A wrong type or an impossible value is an error, and a
configuration with an error is not used, not even in part: at start the last one that loaded is used in its
place (it is kept in `state.directory`), else the socket is served in mode `off`; on a reload the running one
stays. `cri-resmgr status` says why in one sentence, and loading is tried again. Only `run --strict` exits
instead. An unknown key, a key given twice or a key without a value is a warning that names file and line and,
for an unknown one, the nearest known key. An option of an earlier version that is gone is ignored, with a warning that
names what holds in its place; `config check` lets it pass. Old `nri.validator.*` keys are read into `nri.validators`.

**Values.** Durations are seconds (`300`) or have units (`250ms`, `5m`, `1h30m`), above 0 and up to 24h. Lists
of names take globs; a name that begins with `*` must be quoted. `false` is taken for `off` where `off` is a
value. A file may have 256 KiB. YAML's anchors and aliases work for values and sections, its merge keys (`<<`)
do not.

**CPUs** are named as in Intel's files: a quantity (`750m`, `4`), a set (`cpuset:0-3`, or `0-3,8` with a dash
or comma), all but a set (`exclude-cpuset:4-7`), or a cgroup whose set is looked up (`cgroup:/system.slice`, or
an absolute path).

| option | default | live |
|---|---|---|
{rows}
"""

_TYPES = """
#### Balloon types

| key | value | default | |
|---|---|---|---|
{rows}

Keys are read whatever their case (`MinCPUs`, `minCPUs`). {meaningless}Example:

    policy:
      Active: balloons
      balloons:
        BalloonTypes:
          - Name: database
            Namespaces: [prod-db]
            MinCPUs: 8
            MaxCPUs: 16
            PreferNewBalloons: true
          - Name: web
            MatchExpressions:
              - {{key: labels/app, operator: In, values: [web, api]}}
            ShareIdleCPUsInSame: l3cache
"""

_INTEL = """
## Files of Intel's cri-resource-manager and of nri-plugins

They load as they are: Intel's, nri-plugins' own, and the custom resources of nri-plugins (whatever is below
`spec`). The `policy` options above are theirs; further:

| their key | what it becomes |
|---|---|
{policies}
| `kind: TopologyAwarePolicy`, `kind: BalloonsPolicy` | `policy.Active: topology-aware`, `balloons` |
| `reservedResources.cpu`, `availableResources.cpu` | `policy.ReservedResources.CPU`, `policy.AvailableResources.CPU` |
| `policy.NAME.PinCPU: false` | `policy.Active: none`, with a note |
| `policy.NAME.PinMemory` | `true`: `placement.memory: prefer`; `false`: `off` |
| `policy.NAME.ReservedPoolNamespaces` | `placement.reserved_namespaces`, with `kube-system` as in theirs |
{counterparts}
| `unlimitedBurstable` | `placement.unlimited`, with levels by our names: {levels} |
| `rdt`, and `control.rdt` of nri-plugins | `control.rdt`, as it is; Intel's has `usePodQoSAsDefaultClass` |
| `blockio`, and `control.blockio` of nri-plugins | `control.blockio`, as it is; nri-plugins' names no classes |
| `logger.Debug`, `log.debug`, if it turns any source on | `log.level: debug` |

NAME is the policy that the same file makes active; sections of others do not count. In nri-plugins' files, which
have no such sections, the same keys stand at the top. Their keys are read whatever their case. An option of our
own in the same file wins over a translated one. Everything else in their sections is accepted, and a note names
each key once and says why it has no meaning here; `config check` prints notes and does not fail for them. In the sections
of `topology-aware` and `balloons` a key that theirs do not have either is unknown. The sections are {sections}.

| without a meaning | why |
|---|---|
{reasons}
"""

#: The words of the table at the top by those below.
_LIVE = {
    "Live": "yes",
    "Needs a restart": "no",
    "The observer's, live": "observer's: yes",
    "The observer's, needs its restart": "observer's: no",
}

_SAMPLE = """\
## Configuration of cri-resmgr. Every line is commented and shows a default; explained in
## {page}
## Check with: cri-resmgr config check FILE. Apply with: systemctl reload cri-resource-manager
"""


def configuration_markdown() -> str:
    """The page docs/configuration.md."""
    rows = "\n".join(
        f"| [`{o.key}`](#{_anchor(o.key)}) | `{o.check.write(o.default)}` | {_LIVE[_when(o)]} |"
        for o in OPTIONS
    )
    parts = [_INTRO.format(command=COMMAND, rows=rows)]
    for section, options in groupby(OPTIONS, key=_section):
        parts.append(f"\n## `{section}`\n")
        for option in options:
            default = option.check.write(option.default)
            parts.append(f"\n### `{option.key}`\n\n{option.help}\n\nDefault: `{default}`. {_terms(option)}\n")
            if option.key == "policy.balloons.BalloonTypes":
                parts.append(_balloon_types())
    parts.append(_intel())
    return "".join(parts)


def _balloon_types() -> str:
    rows = "\n".join(f"| `{f.key}` | {f.check.expected} | `{f.default}` | {f.help} |" for f in FIELDS)
    reasons = "; ".join(f"`{name}`: {why}" for name, why in MEANINGLESS.items())
    told = f"nri-plugins' others have no meaning here, and a note says why. {reasons}. " if reasons else ""
    return _TYPES.format(rows=rows, meaningless=told)


def _intel() -> str:
    policies = "\n".join(
        f"| `policy.Active: {theirs}` | `policy.Active: {ours}`{'' if theirs == 'memtier' else ', with a note'} |"
        for theirs, ours in compatibility.POLICIES.items()
    )
    told = ("PinMemory", "ReservedPoolNamespaces", "UnlimitedBurstable")
    counterparts = "\n".join(
        f"| `policy.NAME.{theirs}` | `{ours.replace(PART, '.')}` |"
        for theirs, ours in compatibility.COUNTERPARTS.items()
        if theirs not in told
    )
    sections = ", ".join(f"`{name}`" for name in sorted(compatibility.SECTIONS))
    levels = ", ".join(f"`{theirs}` is `{ours}`" for theirs, ours in compatibility.LEVELS.items())
    reasons = "\n".join(
        f"| `{key}` | {why} |" for key, why in {**compatibility.MEANINGLESS, **compatibility.REASONS}.items()
    )
    return _INTEL.format(
        policies=policies, counterparts=counterparts, sections=sections, levels=levels, reasons=reasons
    )


def sample_config() -> str:
    """The shipped config.yaml: without the first # of each line it is a file that sets every default."""
    lines = _SAMPLE.format(page=f"{DOCUMENTS}/configuration.md").splitlines()
    opened: list[str] = []
    for option in OPTIONS:
        *sections, name = option.key.split(".")
        for depth, section in enumerate(sections):
            if opened[: depth + 1] != sections[: depth + 1]:
                lines += [] if depth else ["#"]
                lines.append(f"#{'  ' * depth}{section}:")
        opened = sections
        indent = "  " * len(sections)
        note = f"{option.help} {_terms(option)}"
        lines += [f"#{indent}# {line}" for line in textwrap.wrap(note, _WIDTH, break_on_hyphens=False)]
        lines.append(f"#{indent}{name}: {option.check.write(option.default)}")
    return "\n".join(lines) + "\n"


def _section(option: Option) -> str:
    return option.key.partition(".")[0]


def _terms(option: Option) -> str:
    unit = f" Unit: {option.check.unit}." if option.check.unit else ""
    values = f" to {option.cluster.expected}" if isinstance(option.cluster, Check) else ""
    cluster = f" A cluster's policy may set it{values}." if option.cluster else ""
    return f"Value: {option.check.expected}.{unit} {_when(option)}.{cluster}"


def _when(option: Option) -> str:
    """When a change counts."""
    if option.observer:
        return "The observer's, live" if option.observer == "reload" else "The observer's, needs its restart"
    return "Live" if option.live else "Needs a restart"


def _anchor(heading: str) -> str:
    """What GitHub makes of a heading that is one word."""
    return heading.lower().replace(".", "")


if __name__ == "__main__":
    print(sample_config() if sys.argv[1:] == ["sample"] else configuration_markdown(), end="")
