"""Options that hold a whole section of another program's, each read by a module of its own with the line of every part."""
