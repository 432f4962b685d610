"""Who evaluates the rows: threads and processes of this machine, executors, and whoever sees a folder."""
