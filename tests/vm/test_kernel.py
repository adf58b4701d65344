"""What is taken out of Debian's kernel package."""

from __future__ import annotations

import lzma

import pytest

from tests.vm.kernel import elf_of, load_order

DEPENDENCIES = """\
kernel/fs/ext4/ext4.ko: kernel/fs/jbd2/jbd2.ko kernel/fs/mbcache.ko kernel/lib/crc16.ko
kernel/fs/jbd2/jbd2.ko:
kernel/fs/mbcache.ko:
kernel/lib/crc16.ko:
kernel/drivers/virtio/virtio-pci.ko.xz: kernel/drivers/virtio/virtio.ko
kernel/drivers/virtio/virtio.ko:
"""


def test_the_kernel_is_found_behind_what_only_looks_like_one() -> None:
    kernel = b"\x7fELF the kernel"
    image = b"MZ header" + lzma.compress(b"something else") + b"padding" + lzma.compress(kernel) + b"end"
    assert elf_of(image) == kernel


def test_an_image_without_a_kernel_is_refused() -> None:
    with pytest.raises(ValueError, match="no xz-compressed ELF file"):
        elf_of(b"MZ header")


def test_a_module_comes_after_all_it_needs() -> None:
    order = [path.rsplit("/", 1)[1] for path in load_order(DEPENDENCIES, ("virtio_pci", "ext4", "absent"))]
    assert order[:2] == ["virtio.ko", "virtio-pci.ko.xz"]
    assert set(order[2:-1]) == {"jbd2.ko", "mbcache.ko", "crc16.ko"}
    assert order[-1] == "ext4.ko"
