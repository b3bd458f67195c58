"""The documentation site: `make docs`.

Sphinx reads the pages where they are, from the root of the repository, so a link works here as it does on a code host.
The tables of contents are made from the lists of links in `docs/index.md` and `docs/methods/README.md`, the API
reference from the docstrings (`docs/api.py`).
"""

import inspect
import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.domains.python import PyObject
from sphinx.util.inspect import stringify_signature
from sphinx.util.typing import restify

sys.path.insert(0, str(Path(__file__).parent))

import api

import fedsps

project = "fedsps"
version = release = fedsps.__version__
root_doc = "docs/index"
include_patterns = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**.md", "docs/**.ipynb"]
include_patterns += ["examples/**/README.md"]
exclude_patterns = [".*", "build", "demo", "dist", "benchmarks", "runs", "src", "tests"]
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]

html_theme = "furo"
html_title = f"fedsps {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
templates_path = ["_templates"]
html_additional_pages = {"index": "redirect.html"}  # the pages begin at docs/index.html
html_math_renderer = "mathml"
html_copy_source = False
html_show_copyright = False
pygments_style = "friendly"

myst_heading_anchors = 3
myst_links_external_new_tab = False
nb_execution_mode = "off"  # the notebooks are shown as they were run, by docs/run_notebooks.py

autodoc_default_options = {"no-value": True}  # tables of classes fill pages
autodoc_member_order = "bysource"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False  # they are in the signature
default_role = "name"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
autodoc_typehints_format = "short"
python_display_short_literal_types = True
toc_object_entries_show_parents = "hide"

nitpicky = True
nitpick_ignore_regex = [
    (
        r"py:.*",
        r"(Tensor|torch|np|npt|numpy|pd|pandas|pathlib|collections|typing|concurrent|optuna|flwr|matplotlib|plotly)\b.*",
    ),
    (r"py:class", r"'.*'"),  # the words of a Literal
    (r"py:class", r"fedsps\.core\.plan\.Function|fedsps\.model\.device\.Given"),  # type variables
]


def with_contents(text: str) -> str:
    """A page of lists with a hidden table of contents for each of its sections, made from the links there.

    A list's words are the titles in the contents; for the rows of a table they are those of the pages.
    """
    sections = re.split(r"^(?=## )", text, flags=re.M)
    for number, section in enumerate(sections):
        links = re.findall(r"^- \[([^\]]+)\]\((\S+\.(?:md|ipynb))\)", section, re.M)
        listed = [f"{title} <{page}>" for title, page in links]
        rows = re.findall(r"^\| \[[^\]]+\]\((\S+\.md)\)", section, re.M)
        if listed or rows:
            heading = re.match(r"## (.*)", section)
            caption = [f":caption: {heading[1]}"] if heading else []
            lines = ["```{toctree}", ":hidden:", *caption, "", *listed, *rows, "```"]
            sections[number] = section.rstrip("\n") + "\n\n" + "\n".join(lines) + "\n\n"
    return "".join(sections)


def read_source(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put the contents and the lists of the API into the pages."""
    if docname in ("docs/index", "docs/methods/README"):
        source[0] = with_contents(source[0])
    source[0] = api.expand(source[0])


def read_docstring(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Let docstrings be read as they are written."""
    lines[:] = api.to_rst(lines)
    if what in ("attribute", "data", "property"):
        lines[:0] = ["..", ""]  # an empty comment: else napoleon takes what is before a colon there for a type
    if what in ("class", "exception") and (shown := bases(value)):
        lines[:0] = [f"Bases: {', '.join(restify(base, 'smart') for base in shown)}", ""]


def bases(kind: type) -> list[type]:
    """The base classes of a class; in place of a private one what it is based on, and `object` need not be said."""
    own = [one for base in kind.__bases__ for one in (bases(base) if base.__name__.startswith("_") else [base])]
    return [base for base in own if base is not object]


def signature(app: Sphinx, what: str, name: str, value: Any, options: Any, given: str, returns: str) -> Any:
    """An algorithm is called by its constructor's parameters: its `__new__` takes anything."""
    if what == "class" and issubclass(value, fedsps.Algorithm):
        _, *own = inspect.signature(value.__init__).parameters.values()
        return stringify_signature(inspect.Signature(own), short_literals=True), None
    if not given:
        return None
    readable = re.sub(r"<function (\w+)[^>]*>", r"\1", given)  # a signature that Python cannot read is not marked up
    return readable.replace("<factory>", "..."), returns


def skip(app: Sphinx, what: str, name: str, value: Any, skipped: bool, options: Any) -> bool | None:
    """Leave out the fields of a named tuple, of which Python only says that they are fields."""
    return True if type(value).__name__ == "_tuplegetter" else None


NAME = re.compile(r"(fedsps(\.\w+)+|(\w+\.)*[A-Z]\w*(\.\w+)*)(\(\))?")


def name_role(
    role: str, raw: str, text: str, line: int, inliner: Any, options: Any = None, content: Any = None
) -> tuple[list[nodes.Node], list[nodes.system_message]]:
    """Code between single backticks; a link where it is the name of something that is documented."""
    shown = raw.strip("`") if raw.startswith("`") else text
    literal = nodes.literal(raw, shown, classes=["code"])
    if not NAME.fullmatch(shown):
        return [literal], []
    env = inliner.document.settings.env
    link = addnodes.pending_xref(
        raw,
        literal,
        refdomain="py",
        reftype="obj",
        reftarget=shown.removesuffix("()"),
        refdoc=env.docname,
        refwarn=False,
        refexplicit=False,
    )
    link["py:module"], link["py:class"] = env.ref_context.get("py:module"), env.ref_context.get("py:class")
    link["by_role"] = True
    return [link], []


def not_found(app: Sphinx, env: Any, node: addnodes.pending_xref, shown: nodes.Node) -> nodes.Node | None:
    """A word between backticks may be a public name of another module, and need not be a name at all."""
    if not node.get("by_role"):
        return None
    domain = env.domains.python_domain
    for module in api.PUBLIC:
        target = f"{module}.{node['reftarget']}"
        if target in domain.objects:
            return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", target, node, shown)
    return shown


def formula(writer: Any, node: nodes.math) -> None:
    """A formula as MathML, which browsers draw without a script."""
    display = isinstance(node, nodes.math_block)
    writer.body.append(tex2mathml(node.astext(), as_block=display))
    raise nodes.SkipNode


def source_index(app: Sphinx, env: Any) -> None:
    """Leave modules without a source, such as builtins, out of the list of sources."""
    found = getattr(env, "_viewcode_modules", {})
    for module in [module for module, entry in found.items() if not entry]:
        del found[module]


def source_page(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Mend the links from a source to its reference: a file has public names and others, with different addresses."""
    if not page.startswith("_modules/fedsps"):
        return
    known = app.env.domains.python_domain.objects
    homes = (page.removeprefix("_modules/").replace("/", "."), *api.PUBLIC)

    def mended(found: re.Match[str]) -> str:
        entries = [known[f"{home}.{found[2]}"] for home in homes if f"{home}.{found[2]}" in known]
        places = [f"#{entry.node_id}" for entry in entries if found[3].endswith(f"{entry.docname}.html")]
        return f"{found[1]}{found[3]}{places[0] if places else ''}"

    link = r'(id="([^"]+)">\n<a class="viewcode-back" href=")([^"#]*)#[^"]*'
    context["body"] = re.sub(link, mended, context["body"])


def setup(app: Sphinx) -> None:
    """Connect what is above."""
    for field in PyObject.doc_field_types:
        if field.name == "variable":
            field.label = "Attributes"
    app.add_role("name", name_role)
    app.connect("source-read", read_source)
    app.connect("autodoc-process-docstring", read_docstring, priority=100)  # before napoleon
    app.connect("autodoc-process-signature", signature)
    app.connect("autodoc-skip-member", skip)
    app.connect("missing-reference", not_found)
    app.add_html_math_renderer("mathml", (formula, None), (formula, None))
    app.connect("env-updated", source_index)
    app.connect("html-page-context", source_page)
