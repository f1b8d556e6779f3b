"""What a page loads from other places."""

import re

# What is loaded with a page; links that a reader may follow are none of these.
_TAG = re.compile(r"<(?:script|link|img|iframe|object|source|video|audio)\b[^>]*>")
_ADDRESS = re.compile(r"""\b(?:src|href|data)\s*=\s*["']?((?:https?:)?//[^"'\s>]+)""")
_IMPORTED = re.compile(r"""(?:url\(\s*|@import\s+)["']?((?:https?:)?//[^"')\s]+)""")


def external(text: str, style: bool = False) -> list[str]:
    """The addresses from which a page or a stylesheet loads something."""
    if style:
        return _IMPORTED.findall(text)
    loading = [tag for tag in _TAG.findall(text) if 'rel="canonical"' not in tag]
    return [address for tag in loading for address in _ADDRESS.findall(tag)] + _IMPORTED.findall(text)
