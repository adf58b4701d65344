"""NRI, pure: what is asked of containers by plugins, and what our plugin asks."""
