"""Reads and writes profiles: folders, runs, modules, and XProf as a second reader."""
