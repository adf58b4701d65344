"""The acting half of the daemon: sockets, files, clocks. Decides nothing."""
