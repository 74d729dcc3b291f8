"""Hook of mkdocs: publish each page as Markdown too, and `llms.txt`, which lists them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any


def on_nav(nav: Any, config: Any, files: Any) -> Any:
    """Keep the pages in the order of the navigation."""
    config.extra["pages"] = nav.pages
    return nav


def on_post_build(config: Any) -> None:
    """Write `llms.txt` and the sources of the pages into the site's folder."""
    site = Path(config.site_dir)
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for page in config.extra["pages"]:
        shutil.copy(Path(config.docs_dir) / page.file.src_uri, site / page.file.src_uri)
        lines.append(f"- [{page.title}]({page.file.src_uri})")
    (site / "llms.txt").write_text("\n".join(lines) + "\n")
