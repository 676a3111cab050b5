"""Findings to text and JSON; the only place of the simulator that prints."""
