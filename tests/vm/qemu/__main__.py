"""``python -m tests.vm.qemu``: builds the QEMU whose guests have resctrl, and says where it is.

``--kept`` builds nothing: it says where it is, or that there is none, and ends with 1 then.
"""

from __future__ import annotations

import argparse
import sys

from tests.vm.qemu.build import Unavailable, build, kept, missing


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.vm.qemu", description=__doc__)
    parser.add_argument("--kept", action="store_true", help="build nothing; end with 1 if it is not there")
    if parser.parse_args().kept:
        print(missing() or kept())
        return 1 if missing() else 0
    try:
        print(build(lambda line: print(line, flush=True)))
    except Unavailable as reason:
        print(f"no QEMU with resctrl: {reason}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
