"""Problems of declared gradients in other code, and their replacements: found in the source, without running it."""

from fullgrad._suite.audit._find import Finding, audit, audit_source
from fullgrad._suite.audit._sources import sources

__all__ = ["Finding", "audit", "audit_source", "sources"]
