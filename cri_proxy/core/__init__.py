"""The deciding half of the daemon: values in, values out. No I/O, no clock, no logging (checked by import-linter)."""
