"""Write a page about runs: one HTML file that needs nothing else.

Numbers come from `lossnet.analysis`.  Nothing here knows kinds of input or output: `Output.panels` says what
else there is to see, and `Input.picture` shows an instance.
"""

from lossnet.report.page import write

__all__ = ["write"]
