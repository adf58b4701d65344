"""Lines that caches exchange, counted by a QEMU plugin: a measure of a placement that knows no time and no prefetch."""
