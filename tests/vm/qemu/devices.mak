# What the virtual machines of the tests have of QEMU's devices, and no other.
CONFIG_I440FX=y
CONFIG_VIRTIO_PCI=y
CONFIG_VIRTIO_BLK=y
CONFIG_VIRTIO_9P=y
CONFIG_FSDEV_9P=y
