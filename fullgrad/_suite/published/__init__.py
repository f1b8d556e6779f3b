"""Published Functions of other packages, before and after `fullgrad.adopt`."""

from fullgrad._suite.published._functions import LEFT_OUT, PUBLISHED, Published, found_in
from fullgrad._suite.published._table import page_table, results_of

__all__ = ["LEFT_OUT", "PUBLISHED", "Published", "found_in", "page_table", "results_of"]
