"""The site: ``python -m sphinx -n -W --keep-going docs docs/_build``. Neither the build nor the pages need a network."""

import sys
from pathlib import Path

import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]

import inventories  # noqa: E402
import pictures  # noqa: E402

import fullgrad  # noqa: E402

torch.set_num_threads(1)

project = "fullgrad"
author = copyright = "The fullgrad authors"
version = release = fullgrad.__version__

extensions = [
    "directives",
    "links",
    "matplotlib.sphinxext.plot_directive",
    "myst_parser",
    "offline",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "_ext", "_static", "data", "GALLERY_HEADER.rst"]
myst_enable_extensions = ["amsmath", "colon_fence", "dollarmath"]
myst_heading_anchors = 3
mathjax_path = "mathjax/tex-chtml.js"  # see _ext/offline.py

# --- Links to torch and Python: two lists have the names that the pages use; a name in neither is a broken link. ---
for listed, rule in (("torch", "generated/{name}.html"), ("python", "")):
    inventories.write(HERE / f"{listed}-names.txt", HERE / f"_build/inventories/{listed}.inv", listed, rule)
intersphinx_mapping = {
    "torch": ("https://docs.pytorch.org/docs/stable/", str(HERE / "_build/inventories/torch.inv")),
    "python": ("https://docs.python.org/3/", str(HERE / "_build/inventories/python.inv")),
}
# Names without a page: torch's named tuples, and a type variable.
nitpick_ignore = [("py:class", f"torch.return_types.{name}") for name in ("max", "median", "min", "sort", "topk")]
nitpick_ignore += [("py:class", name) for name in ("fullgrad.functions._st.F", "fullgrad.adoption._adopt.Adopting")]
# Modules where the classes live, which are not those of their pages.
nitpick_ignore += [("py:class", f"torch.{name}") for name in ("autograd.function.Function", "_C.Generator")]
nitpick_ignore += [("py:class", "types.ModuleType")]
# Types of decorated functions: their parameters, their result, and classes without a page.
nitpick_ignore += [("py:class", name) for name in ("P", "R", "fullgrad._engine.operator.P", "fullgrad._engine.operator.R")]
nitpick_ignore += [("py:class", f"fullgrad.functions._custom_{name.lower()}.Custom{name}") for name in ("Gradient", "JVP", "VJP")]

# --- Docstrings ---
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"
napoleon_numpy_docstring = False
napoleon_use_rtype = False

# --- Pictures ---
plot_formats = [("svg", 100)]
plot_rcparams = pictures.STYLE
plot_html_show_formats = False
plot_html_show_source_link = False

# --- Examples ---
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "examples",
    "filename_pattern": r"\.py$",
    "write_computation_times": False,
    "show_memory": False,
    "show_signature": False,
    "download_all_examples": False,
    "parallel": True,  # with `-j`
    "reset_argv": "gallery.arguments",
    "reset_modules": ("matplotlib", "gallery.fresh"),
}

# --- Pages ---
html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = "fullgrad"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"
