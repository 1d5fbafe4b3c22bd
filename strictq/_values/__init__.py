"""Values: keys, types, settings, errors and their hints, reports, and the checks of what callers pass."""
