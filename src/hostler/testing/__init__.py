"""Tools to test applications built on hostler, and hostler itself."""
