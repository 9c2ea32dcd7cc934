"""The page that shows what runs did: one HTML file that needs nothing else.

=================  ===================================================================================
`runs`             run folders: read, refused with a reason, and grouped by what only seeds tell apart
`evidence`         what the runs predict on the data they were trained on, where all that can be had
`markup`           HTML in which every string is escaped unless it is markup already
`tables`           tables, plain and to sort and filter
`draw`             charts as SVG, matrices and images as PNG
`canvas`           columns that are pixels, drawn as a picture
`overview`         what runs of every kind have: figures, curves and settings
`page`             all of it in order
=================  ===================================================================================

Numbers come from `lossnet.analysis`.  Nothing here knows kinds of input or output: `Output.panels` says what
else there is to see, and `Input.picture` shows an instance.
"""

from lossnet.report.page import write

__all__ = ["write"]
