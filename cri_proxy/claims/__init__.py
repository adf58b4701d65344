"""Claims of CPUs (Dynamic Resource Allocation): what can be claimed here, and how a claim reaches containers."""
