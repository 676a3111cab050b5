"""The table of output formats."""

from __future__ import annotations

from simulator.lint.outputs.github import render_github
from simulator.lint.outputs.json import render_json
from simulator.lint.outputs.sarif import render_sarif
from simulator.lint.outputs.text import render_text

FORMATS = {"text": render_text, "json": render_json, "sarif": render_sarif, "github": render_github}
