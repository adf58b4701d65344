"""The command line. Reads arguments, asks the daemon or the core, prints; decides nothing.

Exit codes: 0 done, 1 failed, 2 usage. ``--json`` prints one JSON document on stdout and nothing else.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Optional

import click

from cri_api.control import ControlError
from cri_api.socket_paths import is_served
from cri_proxy.cli.answers import (
    ask_daemon,
    containers,
    control_socket,
    fail,
    fail_by,
    json_option,
    pods,
    print_json,
    show_document,
    waiting_updates,
)
from cri_proxy.cli.arguments import (
    ANY_PATH,
    Commands,
    RunByDefault,
    config_option,
    configured,
    with_first_mode,
)
from cri_proxy.cli.offline import daemons_config, release_offline, set_state_aside
from cri_proxy.cli.output import echo
from cri_proxy.cli.placement_text import (
    explain_text,
    freeze_text,
    overrides_text,
    placements_text,
    policy_text,
    status_text,
)
from cri_proxy.cli.progress import progress
from cri_proxy.cli.topology_drawing import draw_topology
from cri_proxy.config.config import BadConfig, Config, LoadedConfig, read_config
from cri_proxy.config.io import files as settings
from cri_proxy.control import DaemonAbsent, ask
from cri_proxy.node.sysfs import SysfsError, read_sysfs
from cri_proxy.version import VERSION
from policies.machine.borders import settled
from policies.machine.topology import BadTopology, Topology, TopologyData
from policies.machine.topology_json import read_topology, write_topology


@click.group(cls=RunByDefault, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="cri-resmgr")
@click.option("--control-socket", type=ANY_PATH, help="Control socket of the daemon to talk to.")
@click.pass_context
def cli(ctx: click.Context, control_socket: Optional[Path]) -> None:
    """Places containers on L3 slices (CCX) and NUMA nodes, between kubelet and the container runtime.

    Without a subcommand it is `run`. The other commands ask the running daemon. Without it work, too: doctor,
    kubelet, release, reset-policy, topology, simulate, config check and config show --config.
    """
    ctx.obj = control_socket


# ---------------------------------------------------------------------- the daemon


@cli.command()
@configured
@click.option("--relay-socket", help="Socket to serve kubelet on; relay.socket.")
@click.option("--runtime-socket", help="The runtime's socket; relay.runtime_endpoint.")
@click.option(
    "--image-socket", help="A separate image service's, which kubelet is given; relay.image_endpoint."
)
@click.option("--control-socket", help="Socket for the command line; control.socket.")
@click.option("--state-dir", help="Where state is kept; state.directory.")
@with_first_mode
@click.option("--reset-policy", is_flag=True, help="Only set the state aside, and exit.")
@click.option(
    "--strict", is_flag=True, help="Exit where containers cannot be placed, instead of passing bytes."
)
@click.option(
    "--standalone",
    is_flag=True,
    help="Serve no socket: find containers at the runtime, place them once they run.",
)
def run(
    config_file: Optional[Path],
    fallback_config: Optional[Path],
    force_config: Optional[Path],
    reset_policy: bool,
    strict: bool,
    standalone: bool,
    first_mode: Optional[str],
    **flags: Optional[str],
) -> None:
    """Run the daemon in the foreground."""
    keys = {
        "relay_socket": "relay.socket",
        "runtime_socket": "relay.runtime_endpoint",
        "image_socket": "relay.image_endpoint",
        "control_socket": "control.socket",
        "state_dir": "state.directory",
    }
    overrides: dict[str, Any] = {keys[name]: value for name, value in flags.items() if value}
    # Intel's word for "the same as the runtime's".
    if overrides.get("relay.image_endpoint") == "default":
        del overrides["relay.image_endpoint"]
    if "control.socket" not in overrides and click.get_current_context().find_root().obj is not None:
        overrides["control.socket"] = str(click.get_current_context().find_root().obj)
    files = settings.Files(fallback_config, config_file, force_config, overrides)
    if reset_policy:
        # As Intel's: for a daemon that is down. Ours does it running, too.
        config = settings.load_or_last(files).config
        for path in (config["relay.socket"], config["control.socket"]):
            try:
                is_up = is_served(Path(path))
            except OSError as error:
                fail(
                    f"whether the daemon runs is not known: {path}: {error.strerror or error}",
                    "try again as root",
                )
            if is_up:
                fail(f"the daemon is running: {path} is served", "use: cri-resmgr reset-policy")
        echo(f"state {set_state_aside(config, 'cri-resmgr --reset-policy')}")
        return
    if standalone and {"relay.socket", "relay.image_endpoint"} & overrides.keys():
        raise click.UsageError("--standalone serves no socket: leave --relay-socket and --image-socket out")
    from cri_proxy.daemon.daemon import RunOptions, main
    from cri_proxy.daemon.proxy import Proxy
    from cri_proxy.front_ends.standalone import Standalone

    sys.exit(main(RunOptions(files, strict, first_mode or "", Standalone if standalone else Proxy)))


@cli.command()
@json_option
def status(as_json: bool) -> None:
    """Is all well? Mode, runtime, containers, and every reason why not."""
    show_document(ask_daemon("status"), as_json, status_text)


@cli.command()
@click.argument("mode", required=False, type=click.Choice(["enforce", "observe", "off"]))
@json_option
def mode(mode: Optional[str], as_json: bool) -> None:
    """Show or set the mode: enforce, observe (decide, change nothing) or off (bytes only)."""
    show_document(ask_daemon("mode", {"mode": mode} if mode else {}), as_json, _mode_text)


def _mode_text(found: Mapping[str, str]) -> str:
    wanted = found["wanted"]
    is_it = found["mode"] == wanted
    return found["mode"] + ("" if is_it else f" (wanted: {wanted}; see: cri-resmgr status)")


@cli.command()
@json_option
def placements(as_json: bool) -> None:
    """Where every container runs."""
    show_document(ask_daemon("placements"), as_json, placements_text)


@cli.command()
@click.argument("container", metavar="CONTAINER|POD", shell_complete=pods)
@click.option("--verbose", is_flag=True, help="With the figures by which the place was found.")
@json_option
def explain(container: str, verbose: bool, as_json: bool) -> None:
    """Why a container is where it is, or those of a pod.

    By its id or the beginning of it, by namespace/pod/container or the end of that, or by namespace/pod.
    """
    found = ask_daemon("explain", {"container": container})
    show_document(found, as_json, partial(explain_text, verbose=verbose))


@cli.command()
def metrics() -> None:
    """Print the metrics as Prometheus text."""
    echo(ask_daemon("metrics"), nl=False)


@cli.command()
@click.argument("container", required=False, shell_complete=containers)
@click.option("--all", "everything", is_flag=True, help="Every container.")
@config_option
@json_option
def release(container: Optional[str], everything: bool, config_file: Optional[Path], as_json: bool) -> None:
    """Give containers the CPUs and memory they would have without us; works with the daemon down, too."""
    if everything == bool(container):
        raise click.UsageError("name one container, or say --all")
    try:
        with progress("giving containers back", waiting_updates()):
            document = ask(control_socket(), "release", {"container": container, "all": everything})
    except DaemonAbsent:
        document = release_offline(container, config_file)
    except ControlError as error:
        fail_by(error)
    show_document(document, as_json, _updates_text)
    if not all(update["done"] for update in document["updates"]):
        sys.exit(1)


def _updates_text(document: Mapping[str, Any]) -> str:
    lines = [f"{_named(u)}: {u['cpus']}{_not_done(u)}" for u in document["updates"]]
    lines += [f"{_named(row)}: left as it is: {row['why']}" for row in document.get("left", ())]
    changed = sum(update["done"] for update in document["updates"])
    lines.append(f"{changed} of {document['containers']} containers changed")
    return "\n".join([*lines, *filter(None, [document.get("problem")])])


def _named(update: Mapping[str, Any]) -> str:
    path, short = update.get("container"), update["id"][:13]
    return f"{path} ({short})" if path else short


def _not_done(update: Mapping[str, Any]) -> str:
    if update["done"]:
        return ""
    return f"  NOT DONE: {update.get('error') or 'the runtime has not taken it yet; it is tried again'}"


@cli.command()
@click.argument("container", required=False, shell_complete=containers)
@click.option(
    "--all", "everything", is_flag=True, help="Every one that was released or ran before the daemon."
)
@json_option
def adopt(container: Optional[str], everything: bool, as_json: bool) -> None:
    """Take containers under management that are not: place them now."""
    if everything == bool(container):
        raise click.UsageError("name one container, or say --all")
    with progress("placing containers", waiting_updates()):
        document = ask_daemon("adopt", {"container": container, "all": everything})
    show_document(document, as_json, _updates_text)


@cli.command("reset-policy")
@click.option("--replace", is_flag=True, help="Also place every container anew, and print the moves.")
@config_option
@json_option
def reset_policy(replace: bool, config_file: Optional[Path], as_json: bool) -> None:
    """Set the state aside and take over what runs as it is, moving nothing: for records that are wrong."""
    try:
        with progress("taking over what runs", waiting_updates()):
            document = ask(control_socket(), "reset-policy", {"replace": replace})
    except DaemonAbsent as error:
        if replace:
            fail_by(error)
        phrase = set_state_aside(daemons_config(config_file), "cri-resmgr reset-policy")
        document = {"state": phrase, "updates": [], "containers": 0}
    except ControlError as error:
        fail_by(error)
    show_document(document, as_json, _reset_text)


def _reset_text(document: Mapping[str, Any]) -> str:
    lines = [f"state {document['state']}", _updates_text(document)]
    if document.get("adopted") and not document["updates"]:
        lines.append(
            f"{document['adopted']} containers are adopted: they keep what they have, and count where they run; "
            "to place them: cri-resmgr adopt --all"
        )
    return "\n".join(lines)


@cli.command()
@json_option
def acknowledge(as_json: bool) -> None:
    """Take a state that was lost and rebuilt out of the reasons in `status`: it was seen."""
    show_document(ask_daemon("acknowledge"), as_json, _acknowledged_text)


def _acknowledged_text(document: Mapping[str, str]) -> str:
    lost = document["acknowledged"]
    return f"acknowledged: {lost}" if lost else "no state was lost"


@cli.command()
@click.argument("state", required=False, type=click.Choice(["on", "off"]))
@json_option
def freeze(state: Optional[str], as_json: bool) -> None:
    """Move no container that runs, until `off`; over restarts. New ones are placed. Without STATE: how it is.

    The cpuset of a container still follows other containers' exclusive CPUs: its domain stays.
    """
    arguments = {} if state is None else {"on": state == "on"}
    show_document(ask_daemon("freeze", arguments), as_json, freeze_text)


@cli.command()
@click.argument("overrides", nargs=-1, metavar="[NAMESPACE/POD/CONTAINER=ZONE]...")
@click.option("--clear", is_flag=True, help="Take all of them off.")
@json_option
def overrides(overrides: tuple[str, ...], clear: bool, as_json: bool) -> None:
    """Pin containers to zones (numa-3, l3-5, socket-0), in the place of all overrides so far; or show them.

    POD may end in *. A container that runs is moved, one that is created is placed there, if it fits.
    """
    if clear and overrides:
        raise click.UsageError("--clear goes with no override")
    asked = {"overrides": [_override(text) for text in overrides]} if clear or overrides else {}
    show_document(ask_daemon("overrides", asked), as_json, overrides_text)


def _override(text: str) -> dict[str, str]:
    path, equals, zone = text.partition("=")
    names = path.split("/")
    if not equals or len(names) != 3 or not all(names) or not zone:
        raise click.UsageError(f"{text!r} is no override, expected NAMESPACE/POD/CONTAINER=ZONE")
    return {"namespace": names[0], "pod": names[1], "container": names[2], "zone": zone}


# ---------------------------------------------------------------------- without the daemon


@cli.command()
@click.option("--sysfs", type=ANY_PATH, help="Read this sysfs tree or JSON topology instead.")
@click.option("--ascii", "ascii_only", is_flag=True, help="Draw without box characters.")
@json_option
def topology(sysfs: Optional[Path], ascii_only: bool, as_json: bool) -> None:
    """Draw the machine: sockets, NUMA nodes, L3 slices, clusters of cores, CPUs, memory, distances.

    It is the daemon's view of it, or where no daemon runs that of /sys.
    """
    data = _read_machine_aloud(sysfs) if sysfs is not None else _daemons_machine()
    if as_json:
        print_json(write_topology(data))
    else:
        tree = Topology(data, to_clusters=True)
        drawn = draw_topology(tree, ascii=ascii_only)
        try:
            drawn.encode(sys.stdout.encoding or "ascii")
        except UnicodeEncodeError:
            drawn = draw_topology(tree, ascii=True)
        echo(drawn)


def _daemons_machine() -> TopologyData:
    try:
        return read_topology(ask(control_socket(), "topology"))
    except (DaemonAbsent, ControlError):
        return _read_machine_aloud(Path("/sys"))


def _read_machine(source: Path) -> tuple[TopologyData, tuple[str, ...]]:
    """The machine, and what of it could not be read."""
    warnings: tuple[str, ...] = ()
    try:
        if source.is_dir():
            # A saved tree keeps its proc beside its sys, as the real ones are.
            reading = read_sysfs(source, source.parent / "proc")
            data, warnings = reading.data, reading.warnings
        else:
            data, warnings = settled(read_topology(json.loads(source.read_text())))
        Topology(data)
    except (SysfsError, BadTopology, ValueError) as error:
        fail_by(error, str(error) if str(source) in str(error) else f"{source}: {error}")
    except OSError as error:
        fail(f"{source}: {error.strerror}", "expected a sysfs directory or a JSON topology")
    return data, warnings


def _read_machine_aloud(source: Path) -> TopologyData:
    """The machine; what of it could not be read is told."""
    data, warnings = _read_machine(source)
    for warning in warnings:
        echo(f"warning: {warning}", err=True)
    return data


@cli.command()
@click.option(
    "--topology",
    "topology_file",
    type=ANY_PATH,
    help="The machine: a sysfs directory such as /sys, or what topology --json prints.",
)
@click.option("--config", "config_file", type=ANY_PATH, help="Our configuration, or Intel's form.")
@click.argument("scenario", type=ANY_PATH)
def simulate(topology_file: Optional[Path], config_file: Optional[Path], scenario: Path) -> None:
    """Replay SCENARIO (a JSON list of steps) on a machine; one JSON object a step. No daemon, no root.

    What status and log of a node would say besides is in "notes", and in words on stderr.
    """
    from cri_proxy.simulator.replay import simulate as lines_of
    from cri_proxy.simulator.replay import write_line
    from cri_proxy.simulator.scenario import BadScenario

    if topology_file is None:
        raise click.UsageError(
            "say on which machine, by --topology: /sys is this one; cri-resmgr topology --json > FILE keeps another's"
        )
    data, warnings = _read_machine(topology_file)
    try:
        config = _load_config(config_file)
        steps = json.loads(scenario.read_text())
        for line in lines_of(
            data, config, steps, lambda name: _load_config(scenario.parent / name), warnings
        ):
            for note in line["notes"]:
                echo(f"step {line['step']}: {note}", err=True)
            echo(write_line(line))
    except (BadScenario, BadConfig) as error:
        echo(f"cri-resmgr: {error}", err=True)
        sys.exit(2)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        expected = "expected a JSON list of steps; docs/policies.md has them"
        echo(f"cri-resmgr: {scenario}: {reason}; {expected}", err=True)
        sys.exit(2)


def _load_config(path: Optional[Path]) -> LoadedConfig:
    return read_config([] if path is None else [settings.read_source(path, is_typed=True)])


@cli.group(cls=Commands)
def config() -> None:
    """Check and show the configuration."""


@config.command()
@click.argument("file", type=ANY_PATH)
@click.option(
    "--diff", is_flag=True, help="Also ask the daemon what would move if it read FILE, changing nothing."
)
def check(file: Path, diff: bool) -> None:
    """Check FILE as the daemon would read it; unknown keys are errors here.

    With --diff FILE takes the place of the daemon's file of that path, else of its config.yaml.
    """
    try:
        source = settings.read_source(file, is_typed=True)
        online, problem = _machine_of(read_config([source], strict=True).config)
        loaded = read_config([source], topology_cpus=online, strict=True)
        if problem:
            raise BadConfig([problem], loaded.warnings)
    except BadConfig as error:
        for warning in error.warnings:
            echo(f"warning: {warning}", err=True)
        for sentence in error.errors:
            echo(sentence, err=True)
        sys.exit(1)
    for warning in loaded.warnings:
        echo(f"warning: {warning}", err=True)
    echo(f"{file}: good")
    if diff:
        from cri_proxy.simulator.preview import diff_text

        echo(diff_text(ask_daemon("config-diff", {"name": str(file.resolve()), "text": source.text})))


def _machine_of(config: Config) -> tuple[Optional[frozenset[int]], str]:
    """The CPUs of the machine that a configuration describes, and what is wrong with that; of this one nothing is."""
    source, origin = Path(config["topology.source"]), config.origins["topology.source"]
    try:
        if not source.is_dir():
            return Topology(settled(read_topology(json.loads(source.read_text())))[0]).online, ""
        return Topology(read_sysfs(source, source.parent / "proc").data).online, ""
    except (SysfsError, BadTopology, ValueError, OSError) as error:
        if origin == "default":
            return None, ""
        reason = error.strerror if isinstance(error, OSError) else error
        expected = "expected a sysfs directory or a JSON topology (cri-resmgr topology --json prints one)"
        return None, f"{origin}: topology.source is {source}: {reason}; {expected}"


@config.command()
@json_option
@click.option(
    "--config",
    "config_file",
    type=ANY_PATH,
    help="Show what this file would give, without asking the daemon.",
)
def show(as_json: bool, config_file: Optional[Path]) -> None:
    """Every option with its value and where that comes from."""
    if config_file is not None:
        try:
            shown = _load_config(config_file).config.show()
        except BadConfig as error:
            fail_by(error)
        rows = [{"key": key, "value": value, "origin": origin} for key, value, origin in shown]
    else:
        rows = ask_daemon("config")
    show_document(rows, as_json, _config_text)


@config.command("cluster-policy")
@click.option("--clear", is_flag=True, help="Take it off, and let no other in until --accept.")
@click.option(
    "--accept", is_flag=True, help="Let policies in again, and the one that was handed over meanwhile."
)
@json_option
def cluster_policy(clear: bool, accept: bool, as_json: bool) -> None:
    """Show the policy that the cluster has handed to this node; or take it off."""
    if clear and accept:
        raise click.UsageError("--clear goes without --accept")
    if clear or accept:
        ask_daemon("cluster-policy", {"name": None, "held_off": clear})
    document: dict[str, Any] = ask_daemon("cluster-policy")
    show_document(document, as_json, policy_text)


def _config_text(rows: Any) -> str:
    keys = max(len(row["key"]) for row in rows)
    values = max(len(row["value"]) for row in rows)
    return "\n".join(f"{row['key']:<{keys}}  {row['value']:<{values}}  {row['origin']}" for row in rows)
