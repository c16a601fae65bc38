"""The testbed's own test suite uses its own pytest plugin, as a user's test folder would."""

pytest_plugins = ["testbed.pytest_plugin", "pytester"]
