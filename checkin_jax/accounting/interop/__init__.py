"""dp_accounting's interfaces to this package: accountant, events, ledgers, privacy loss distributions."""
