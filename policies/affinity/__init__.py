"""Which containers should run near each other: by annotations (declared.py), told by match expressions (expressions.py)."""
