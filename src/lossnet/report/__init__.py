"""Write a page about runs: one HTML file that needs nothing else.

=================  ===================================================================================
`runs`             read run folders, and group runs that differ only in their seed
`evidence`         predictions of the runs on the data they were trained on
`markup`           HTML elements and tables, in which every string is escaped unless it is markup already
`draw`             charts as SVG, matrices and images as PNG
`canvas`           columns that are pixels, drawn as a picture
`overview`         sections about runs of every kind: figures, curves and settings
`page`             the whole page
=================  ===================================================================================

Numbers come from `lossnet.analysis`.  Nothing here knows kinds of input or output: `Output.panels` says what
else there is to see, and `Input.picture` shows an instance.
"""

from lossnet.report.page import write

__all__ = ["write"]
