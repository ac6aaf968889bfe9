"""Pure values and rules: no I/O, no pytest, no hardware; imports nothing of ours but itself."""
