"""Spans of intercepted calls, under the trace of the program that called."""
