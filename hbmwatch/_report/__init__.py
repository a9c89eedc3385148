"""How a report reads: text, JSON, metrics, HTML."""
