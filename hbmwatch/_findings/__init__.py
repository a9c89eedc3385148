"""The findings, one file each, and how they are ranked."""
