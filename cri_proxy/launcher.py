"""The command's first lines: hands over to the real program, or, if that cannot run, to one that is simple.

A node whose agent is broken must still start pods. So this module imports the standard library only; when
the imports or the start of ``cri-resmgr run`` fail, the process becomes ``passthrough.py`` (bytes only).
"""

import contextlib
import os
import sys
import traceback

#: Flags, in our spelling and Intel's, with which ``run`` serves nothing either, or must not without placing.
NOT_SERVING = {
    *("help", "h", "version", "reset-policy", "strict", "standalone"),
    *("dry-run", "list-policies", "print-config", "reset-config"),
}
#: Set by a shell that asks which words may follow; it comes without words of its own, as ``run`` does.
COMPLETING = "_CRI_RESMGR_COMPLETE"


def main():
    """Entry point of ``cri-resmgr``."""
    if sys.argv[1:3] == ["nri", "launch"]:  # becomes a plugin; nothing else is imported for that
        from cri_proxy.nri.io import launcher as nri_launcher

        sys.exit(nri_launcher.main(sys.argv[3:]))
    if COMPLETING in os.environ:
        _complete()
    if is_nri_plugin(sys.argv[1:]):
        with contextlib.suppress(Exception):  # then the program does it, later
            from cri_proxy.nri.io.plugin import launched

            launched.begin(os.environ)
    serves = is_serving(sys.argv[1:])
    if serves:
        with contextlib.suppress(Exception):  # then callers wait for the daemon's own first words
            from cri_proxy import greeting

            greeting.begin()
    stays = serves or is_nri_plugin(sys.argv[1:])
    try:
        from cri_proxy.light_imports import lightly

        with lightly() if stays else contextlib.nullcontext():
            import click

            from cri_proxy.cli.main import cli

            if serves:
                import cri_proxy.daemon.daemon
                import cri_proxy.daemon.proxy  # noqa: F401  # later nothing could take over from a failure of it
    except Exception as error:
        if not serves:
            sys.exit(f"cri-resmgr: it cannot run: {_sentence(error)}\n  reinstall the package")
        _pass_bytes(_sentence(error))
    try:
        # Wrong usage is told to the terminal; a service that ended for it would leave kubelet waiting.
        cli(standalone_mode=not serves or os.isatty(2))
    except click.Abort:  # SIGINT
        sys.exit(1)
    except click.UsageError as error:
        where = "systemctl cat cri-resource-manager shows where it is from"
        _pass_bytes(f"the command line is wrong: {error.format_message()} ({where})")
    except Exception as error:
        if not serves:
            raise
        traceback.print_exc()
        _pass_bytes(_sentence(error))


def _complete():
    """Tell a shell the words; whatever fails, nothing is written among what its user types."""
    with contextlib.suppress(Exception):
        from cri_proxy.cli.main import cli

        cli()
    sys.exit(1)


def is_serving(words):
    """Whether a command line (without the program's name) is one that serves kubelet's socket."""
    first = [*_command(words), "run"][0]
    flags = {word.lstrip("-").split("=")[0] for word in words if word.startswith("-")}
    return (first == "run" or first.startswith("-")) and not NOT_SERVING & flags


def is_nri_plugin(words):
    """Whether a command line is that of a plugin which a runtime may have launched."""
    return _command(words)[:2] == ["nri", "run"] and not {"-h", "--help"} & set(words)


def _command(words):
    at = 0
    while words[at:] and words[at].split("=")[0] == "--control-socket":
        at += 1 if "=" in words[at] else 2
    return words[at:]


def _pass_bytes(problem):
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "passthrough.py")
    print(f"cri-resmgr: degraded, passing bytes only: {problem}", file=sys.stderr, flush=True)
    with contextlib.suppress(Exception):  # then clients that were greeted call again
        from cri_proxy import greeting

        os.environ["CRI_RESMGR_GREETED"] = greeting.hand_on()
    os.execv(sys.executable, [sys.executable, "-I", program, problem, *sys.argv[1:]])


def _sentence(error):
    return " ".join(f"{type(error).__name__}: {error}".split())


if __name__ == "__main__":
    main()
