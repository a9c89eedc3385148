"""The command hbmwatch, one file for each of its commands."""
