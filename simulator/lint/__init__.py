"""Static checks of group code: source is read, never imported, and torch is not needed.

Looks at one call, one condition, one list at a time. Not modelled: values that travel through attributes, containers or
other functions; what a condition comes to at run time. A rule that would have to guess says nothing.

command      `hangcheck lint`; options below it (arguments and `[tool.hangcheck.lint]`)
run          files to violations: each file is examined by itself, then signatures of the whole tree are brought in
files        which files are linted
source       one file: its text, its tree, or why it has none
module       a tree with parents, scopes and what names stand for; scopes below it
conditions   what must hold where an expression is evaluated
flow         where the values of a name come from
ranks        which expressions differ between ranks; torch_calls says what a call of torch is
signatures   what the functions of a tree accept; linking finds the function that a call means
ignores      comments that silence a violation
violations   what a violation is
outputs/     text, JSON, SARIF, GitHub annotations
rules/       one module for each kind of rule; the catalogue lists them
"""
