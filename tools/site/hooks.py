"""Makes mkdocs take these pages as GitHub does."""

import os
import re
import sys

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import doc_blocks  # pylint: disable=wrong-import-position


def on_config(config):
    config.mdx_configs.setdefault("toc", {})["slugify"] = lambda heading, _: doc_blocks.heading_anchor(heading)
    return config


def on_page_markdown(markdown, page, files, **_):
    """Links to files that are not pages lead to the repository, or nowhere if none is given."""
    repository = os.environ.get("DTENSOR_SITE_REPOSITORY")  # https://github.com/OWNER/NAME/blob/main

    def link(match):
        path = match.group(1).partition("#")[0]
        target = os.path.normpath(os.path.join(os.path.dirname(page.file.src_uri), path))
        if not path or re.match("[a-z]+:", path) or files.get_file_from_path(target) or not os.path.exists(
                os.path.join(ROOT, target)):
            return match.group(0)  # mkdocs complains where that leads nowhere
        text = match.group(0)[:match.start(1) - match.start(0) - 1]
        return f"{text}({repository}/{target})" if repository else text[1:-1]

    markdown = re.sub(r"^( *```\w+) .*$", r"\1", markdown, flags=re.M)  # what doc_blocks.py reads beside a block's language
    return doc_blocks.LINK.sub(link, markdown)
