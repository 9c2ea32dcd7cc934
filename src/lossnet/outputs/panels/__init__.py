"""Panels of a report for each kind of output, beside figures, curves and settings.

=================  ===================================================================================
`labels`           pairs of labels that the energy wants together, each label's scores, examples
`tags`             tags that the energy wants in a row, scores of tags and spans, confusions, examples
`masks`            examples with the energy's pull on each pixel
`parts`            parts of several of them: learned pairs, tables of scores, cards of examples
=================  ===================================================================================

Each has ``sections(evidence, tell)``, which `Output.panels` of its kind calls.  They draw with the toolkit of
`lossnet.report` (markup, tables, charts), which knows no kinds.
"""
