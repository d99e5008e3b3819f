"""Make the description of the package when it is built; hatchling finds this file by its name."""

import runpy
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class DescriptionHook(MetadataHookInterface):
    """Fills in `readme`, which pyproject.toml declares to be dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Write README.md into the metadata, with links that lead to the repository."""
        root = Path(self.root)
        tool = runpy.run_path(str(root / "tools" / "description.py"))
        text = (root / "README.md").read_text(encoding="utf-8")
        source = metadata["urls"]["Source"]
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": tool["description"](text, source),
        }
