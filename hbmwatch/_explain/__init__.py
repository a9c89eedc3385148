"""From a failed call to HbmOomError."""
