"""Reads and checks profiles: YAML to expectation.

`document` and `reader` know YAML and types, `grammar` and `limits` know what a profile says,
`lint` holds it against physics, `load` finds files, `match` holds profiles against machines.
"""

from __future__ import annotations

from pytest_gpuxfer.profiles.errors import ProfileError as ProfileError
from pytest_gpuxfer.profiles.lint import Finding as Finding
from pytest_gpuxfer.profiles.lint import lint as lint
from pytest_gpuxfer.profiles.lint import uncovered as uncovered
from pytest_gpuxfer.profiles.load import load as load
from pytest_gpuxfer.profiles.load import shipped as shipped
from pytest_gpuxfer.profiles.match import Choice as Choice
from pytest_gpuxfer.profiles.match import check_match as check_match
from pytest_gpuxfer.profiles.match import choose as choose
from pytest_gpuxfer.profiles.match import declare_partial as declare_partial
