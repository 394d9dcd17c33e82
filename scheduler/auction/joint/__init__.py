"""New plans for many jobs at once: every promise that can be kept is, and no price moves."""
