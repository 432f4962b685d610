"""Reports of finished runs: text, an HTML page, and runs read back from their folders."""
