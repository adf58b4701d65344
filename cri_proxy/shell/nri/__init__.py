"""NRI, the I/O: the host of plugins inside the proxy, and our own plugin."""
