"""Who checks in when: schedules of every protocol, drawn from secret entropy."""
