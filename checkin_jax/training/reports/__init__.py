"""Reports of finished runs: as text, as one HTML page, and read back from a folder."""
