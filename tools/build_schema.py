"""Writes the JSON Schema of the record from its types: `python tools/build_schema.py`."""

from __future__ import annotations

import json

from pytest_gpuxfer.report.records import SCHEMA_FILE, json_schema

if __name__ == "__main__":
    SCHEMA_FILE.write_text(json.dumps(json_schema(), indent=1) + "\n", encoding="utf-8")
