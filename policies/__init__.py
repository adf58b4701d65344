"""Placement as pure functions: values in, values out. No sockets, files, clocks or logging (checked by import-linter)."""
