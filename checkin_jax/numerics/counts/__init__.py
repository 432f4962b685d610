"""Laws of whole numbers: how many clients, slots and indicators there are. Host code, numpy float64."""
