"""An extension of the site's reference: docstrings have no empty lines between their sections, and its parser wants them."""

import re
from typing import Any

import griffe

SECTION = re.compile(
    r"^(?=(?:Args|Returns|Raises|Attributes|Yields|Examples|Source):)",
    re.MULTILINE,
)
SOURCE = re.compile(r"^Source: docs/(\S+\.md)\s*$", re.MULTILINE)

TWIN = re.compile(r"(?:twin|mirrored)\((\w+)")


class Sections(griffe.Extension):
    """Separates sections, and links the explanations that docstrings name."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object before it is parsed."""
        if obj.docstring is None and obj.is_attribute:
            twin = TWIN.match(str(obj.value or ""))
            if twin is not None:
                obj.docstring = griffe.Docstring(
                    f"See {twin[1]}.{obj.name}.", parent=obj
                )
        if obj.docstring is not None:
            text = SECTION.sub("\n", obj.docstring.value)
            obj.docstring.value = SOURCE.sub(r"More: [\1](../../\1)", text)
