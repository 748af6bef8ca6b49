"""Which requirements of the engine's image are layers of their own: the large ones, that seldom change."""
