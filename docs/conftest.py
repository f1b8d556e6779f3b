"""What pytest leaves alone in this folder: the site's own code, which needs Sphinx, and what a build makes."""

collect_ignore_glob = ["conf.py", "_ext/*", "_build/*", "examples/*"]
