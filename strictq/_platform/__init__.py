"""The surroundings: files, processes, clocks, threads, late imports, the log, and observers."""
