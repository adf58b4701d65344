"""What sizing shared sets by demand brings and costs, on loads that are made up: ``python -m bench.demand``."""
