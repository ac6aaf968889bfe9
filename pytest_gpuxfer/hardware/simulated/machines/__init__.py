"""The simulated machines, one YAML file each."""
