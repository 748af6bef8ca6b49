"""The main job from end to end, told step by step: `make demo`, `make demo-down`."""
