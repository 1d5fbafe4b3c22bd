"""An extension of the site's reference: docstrings have no empty lines between their sections, and its parser wants them."""

import re
from typing import Any

import griffe

SECTION = re.compile(
    r"^(?=(?:Args|Returns|Raises|Attributes|Yields|Examples|Source):)",
    re.MULTILINE,
)
SOURCE = re.compile(r"^Source: docs/(\S+\.md)\s*$", re.MULTILINE)


class Sections(griffe.Extension):
    """Separates sections, and links the explanations that docstrings name."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object before it is parsed."""
        if obj.docstring is not None:
            text = SECTION.sub("\n", obj.docstring.value)
            obj.docstring.value = SOURCE.sub(r"More: [\1](../../\1)", text)
