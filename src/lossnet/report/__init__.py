"""The page that shows what runs did: one HTML file that needs nothing else.

=================  ===================================================================================
`runs`             run folders: read, refused with a reason, and grouped by what only seeds tell apart
`evidence`         what the runs predict on the data they were trained on, where all that can be had
`markup`           HTML in which every string is escaped unless it is markup already
`tables`           tables, plain and to sort and filter
`scores`           precision, recall and F1 of each label or tag, and the gain over the baseline
`draw`             charts as SVG, matrices and images as PNG
`overview`         what runs of every kind have: figures, curves and settings
`labels`           what there is to see where outputs are label sets
`tags`             what there is to see where outputs are tags of sentences
`masks`            what there is to see where outputs are masks
`page`             all of it in order
=================  ===================================================================================

Numbers come from `lossnet.analysis`.  A new kind of output is one new file here, and a line in `page`.
"""

from lossnet.report.page import write

__all__ = ["write"]
