"""Profiles: what each kind of machine must show, one YAML file a kind."""
