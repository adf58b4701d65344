"""Who should run near whom: by annotations (declared.py), told by match expressions (expressions.py)."""
