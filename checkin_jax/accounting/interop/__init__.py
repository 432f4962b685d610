"""Our units in dp_accounting's terms: accountant, events, ledgers, privacy loss distributions."""
