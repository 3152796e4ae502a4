"""Arms of a comparison: one process each, which never sees the clock that judges it (`protocol`)."""
