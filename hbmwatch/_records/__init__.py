"""The nouns, and what every room needs: sizes, paths, roles, text."""
