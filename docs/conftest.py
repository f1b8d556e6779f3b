"""Keeps pytest away from the site's own code, which needs Sphinx, and from what a build makes."""

collect_ignore_glob = ["conf.py", "_ext/*", "_build/*", "examples/*"]
