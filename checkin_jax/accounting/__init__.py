"""Host-side accounting: validation, choice of bound, brackets, events and calibration."""
