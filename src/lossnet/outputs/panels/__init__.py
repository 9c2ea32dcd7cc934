"""What a report shows of each kind of output, beside figures, curves and settings.

=================  ===================================================================================
`labels`           pairs of labels that the energy wants together, each label's scores, examples
`tags`             tags that the energy wants in a row, scores of tags and spans, confusions, examples
`masks`            examples with the energy's pull on each pixel
`scores`           a table of precision, recall and F1, and the gain over the baseline
`learned`          heat maps and lists of pairs
=================  ===================================================================================

Each has ``sections(evidence, tell)``, which `Output.panels` of its kind calls.  They draw with the toolkit of
`lossnet.report` (markup, tables, charts), which knows no kinds.
"""
