"""Templates and style sheets of the reports, rendered with everything escaped."""

from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined


@cache
def text_of(name: str) -> str:
    """The text of a file of this folder."""
    return (files(__name__) / name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    return Environment(
        loader=FunctionLoader(text_of),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(name: str, **values: Any) -> str:
    """The template with those values. A value is escaped unless it is marked as safe."""
    return _environment().get_template(name).render(**values)
