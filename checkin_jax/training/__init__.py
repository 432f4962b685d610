"""Training under check-in protocols: data, networks, schedules, the private step, the loop and its report."""
