"""How Sphinx builds these pages: `make docs`. docs/develop/documentation.md says why it is set up this way."""

import re

project = "syncbed"
author = "The syncbed authors"
copyright = author

extensions = ["myst_parser"]
myst_heading_anchors = 3  # a link may name a heading down to this level
pygments_style, pygments_dark_style = "a11y-high-contrast-light", "a11y-high-contrast-dark"

html_theme = "pydata_sphinx_theme"
html_title = "syncbed"
html_static_path = ["_static"]
html_css_files = ["syncbed.css"]
html_copy_source = html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": "syncbed"},
    "header_links_before_dropdown": 6,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "navigation_with_keys": False,
    "pygments_light_style": pygments_style,
    "pygments_dark_style": pygments_dark_style,
}


def link_to_files(app, page, source):
    """Link to Markdown outside of docs/ as to any other file, which Sphinx copies, and not as to a page."""
    source[0] = re.sub(r"\]\((\.\./\.\./[^)#]*\.md)", r"](path:\1", source[0])


def setup(app):
    app.connect("source-read", link_to_files)
