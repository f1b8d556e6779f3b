"""What breaks in the declared gradients of other code, and what replaces it: read from the source, of which nothing runs."""

from fullgrad._suite.audit._find import Finding, audit, audit_source
from fullgrad._suite.audit._sources import sources

__all__ = ["Finding", "audit", "audit_source", "sources"]
