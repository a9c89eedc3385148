"""What hbmwatch costs: each module answers one question with a ratio to the bare case."""
