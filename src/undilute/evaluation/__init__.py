"""Did it help?  Loss by position, needle recall, entropy, speed and memory: before, after, and the difference."""
