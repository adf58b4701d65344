"""The edit of QEMU's source that gives a guest resctrl: text in, text out. Pure.

Debian's source is not kept here; what is put in stands beside this file, in resctrl.c.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CPU = "target/i386/cpu.c"
REGISTERS = "target/i386/tcg/sysemu/misc_helper.c"
MESON = "meson.build"
PLUGINS = "plugins/qemu-plugins.symbols"


@dataclass(frozen=True)
class Edit:
    """One place of a file: ``before`` it, a text that stands there once, comes ``put``; ``drop``: in its stead."""

    before: str
    put: str
    drop: bool = False


_OURS = """\
void resctrl_write(CPUX86State *env, uint32_t number, uint64_t value);
uint64_t resctrl_read(CPUX86State *env, uint32_t number);

"""

EDITS: Mapping[str, Sequence[Edit]] = {
    CPU: (
        Edit("void cpu_x86_cpuid(CPUX86State *env, uint32_t index, uint32_t count,\n", '#include "resctrl.c"\n\n'),
        Edit(
            "    switch(index) {\n    case 0:\n        *eax = env->cpuid_level;\n",
            "    if (resctrl_cpuid(env, index, count, eax, ebx, ecx, edx)) {\n        return;\n    }\n",
        ),
        Edit("            if ((*ecx & CPUID_7_0_ECX_PKU) && ", "            *ebx |= resctrl_leaf_7_ebx(env);\n"),
        Edit(
            "        *ebx = env->features[FEAT_8000_0008_EBX];\n",
            "        *ebx = env->features[FEAT_8000_0008_EBX] | resctrl_leaf_80000008_ebx(env);\n",
            drop=True,
        ),
    ),
    REGISTERS: (
        Edit("void helper_wrmsr(CPUX86State *env)\n", _OURS),
        Edit(
            "        /* XXX: exception? */\n        break;\n    }\n    return;\nerror:\n",
            "        resctrl_write(env, env->regs[R_ECX], val);\n",
        ),
        Edit(
            "        /* XXX: exception? */\n        val = 0;\n        break;\n    }\n    env->regs[R_EAX]",
            "        val = resctrl_read(env, env->regs[R_ECX]);\n        break;\n    }\n    env->regs[R_EAX]",
            drop=True,
        ),
    ),
    # What a plugin may set (resctrl.c).
    PLUGINS: (Edit("  qemu_plugin_bool_parse;\n", "  qemu_plugin_msr_written;\n"),),
    # Firmware of other machines, which Debian's archive does not have.
    MESON: (Edit("    unpack_edk2_blobs = bzip2.found()\n", "    unpack_edk2_blobs = false\n", drop=True),),
}  # fmt: skip


def edited(name: str, text: str, edits: Sequence[Edit]) -> str:
    """The file's text with its edits.

    :raises ValueError: a text that an edit looks for is not there, or there more than once.
    """
    for edit in edits:
        found = text.count(edit.before)
        if found != 1:
            line = edit.before.strip().splitlines()[0]
            raise ValueError(
                f'{name} has "{line}" {found} times, expected once: this source is another than the one that is known'
            )
        text = text.replace(edit.before, edit.put if edit.drop else edit.put + edit.before)
    return text
