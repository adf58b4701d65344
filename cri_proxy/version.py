"""The version, in one place besides setup.cfg (a test compares them)."""

VERSION = "0.1.0"
