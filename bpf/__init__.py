"""The observer: sees which containers talk to each other and how much. A process of its own, which stays small.

Nothing here imports grpc, structlog, click or networkx (import-linter says so): together they hold three times
what the observer needs. bcc is imported by a short-lived child only (loader.py), under the system's Python.
"""
