"""Panels of a report for each kind of output, beside figures, curves and settings.

Each has ``sections(evidence, tell)``, which `Output.panels` of its kind calls.  They draw with the toolkit of
`lossnet.report` (markup, tables, charts), which knows no kinds; `parts` are common to several of them.
"""
