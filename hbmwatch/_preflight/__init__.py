"""From shapes to a verdict, before anything runs."""
