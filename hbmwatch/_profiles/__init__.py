"""Where profiles lie: which folder, which run, which module."""
