"""What the text of an error says."""
