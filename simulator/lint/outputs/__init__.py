"""Violations as text: for people, and for machines.

text     a line for each, with the source and what to write
json     one document
sarif    SARIF 2.1.0, for code scanning
github   annotations of GitHub Actions
formats  the table of them
"""
