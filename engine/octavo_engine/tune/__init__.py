"""`octavo tune`: which launch of each kernel is the fastest on this device, for one model's shapes."""
