"""Names of operators in the tables of `which.md` become links to their entries; the pages' source stays plain code.

A table's columns of operators are those headed *use* or *write*. In a section about a package, names are taken from it first.
"""

import names
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

PAGES = ("which",)


def link_names(app: Sphinx, doctree: nodes.document) -> None:
    """Links in the columns of operators, in place of links of whole cells to a page where a name is found."""
    page = app.env.docname
    if page not in PAGES:
        return
    for table in doctree.findall(nodes.table):
        head = next(table.findall(nodes.thead))
        columns = [i for i, entry in enumerate(head.findall(nodes.entry)) if names.OPERATORS.match(entry.astext())]
        section = table.parent
        title = section.next_node(nodes.title).astext() if isinstance(section, nodes.section) else ""
        for row in next(table.findall(nodes.tbody)).findall(nodes.row):
            for i in columns:
                _link_cell(row[i], names.PACKAGES.get(title, ""), page)


def _link_cell(cell: nodes.entry, package: str, page: str) -> None:
    for literal in [*cell.findall(nodes.literal)]:
        if not any(path for _, path in names.linked(literal.astext(), package)):
            continue
        outer = literal.parent
        while outer is not cell and not isinstance(outer, (nodes.reference, addnodes.pending_xref)):
            outer = outer.parent
        if outer is not cell:  # a link to the page of the family
            inner = outer[0].children if isinstance(outer, addnodes.pending_xref) else outer.children
            outer.replace_self([*inner])
        children = []
        for word, path in names.linked(literal.astext(), package):
            text = nodes.Text(word)
            if path:
                reference = addnodes.pending_xref(
                    "", refdomain="py", reftype="obj", reftarget=path, refexplicit=True, refdoc=page
                )
                reference += nodes.inline("", word)
                children.append(reference)
            else:
                children.append(text)
        literal.children = []
        literal += children


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx's hook."""
    app.connect("doctree-read", link_names)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
