"""Programs compiled again, to compare the bytes: for `verify --rebuild` and `[remote] verify`."""
