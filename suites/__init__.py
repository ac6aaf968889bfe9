"""The tests that judge a machine: `pytest --pyargs pytest_gpuxfer.suites`."""
