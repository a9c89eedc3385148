"""What hbmwatch costs: each module here asks one question, beside the bare case, with a ratio."""
