"""Measurements. Neither product nor tests: they print figures and claim nothing."""
