"""``make demo``: the main job, end to end, in front of your eyes."""
