"""A machine model behind the hardware Protocols."""
