"""The keeper process: standard library only, started as ``python -I -S .../keeper/holder``, knows no program's protocol."""
