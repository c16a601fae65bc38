"""Templates and style sheets of the reports, rendered with everything escaped: what HTML would take
for markup, and what nobody could see.
"""

from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from testbed.model.errors import printable


@cache
def text_of(name: str) -> str:
    """The text of a file of this folder."""
    return (files(__name__) / name).read_text(encoding="utf-8")


def shown(value: Any) -> Any:
    """A value as a template shows it; what is marked as safe was escaped before."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def _environment() -> Environment:
    return Environment(
        loader=FunctionLoader(text_of),
        autoescape=True,
        finalize=shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(name: str, **values: Any) -> str:
    """The template with those values. A value is escaped unless it is marked as safe."""
    return _environment().get_template(name).render(**values)
