"""What was decided and what moved, and why: kept over restarts, apart from the state."""
