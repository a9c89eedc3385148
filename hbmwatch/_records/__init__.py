"""The records that all rooms exchange, and what every room needs: sizes, paths, roles, text."""
