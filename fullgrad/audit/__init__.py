"""Problems of declared gradients in other code, and their replacements: found in the source, without running it."""

from fullgrad.audit._find import Finding, audit, audit_source

__all__ = ["Finding", "audit", "audit_source"]
