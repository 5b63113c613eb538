"""The types of the native module (`_native.pyi`) name what the module has, and nothing else."""

import ast
import inspect
from pathlib import Path

import pagefold
from pagefold import _native

STUB = Path(pagefold.__file__).parent / "_native.pyi"


def names_of(body: list[ast.stmt]) -> set[str]:
    """Returns the public names that classes, functions and annotations of a stub define."""
    found = {node.name for node in body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    found |= {node.target.id for node in body if isinstance(node, ast.AnnAssign)}
    return {name for name in found if not name.startswith("_")}


def test_the_types_name_what_there_is():
    stub = ast.parse(STUB.read_text()).body
    assert names_of(stub) == {name for name in dir(_native) if not name.startswith("_")}
    for node in stub:
        if isinstance(node, ast.ClassDef) and not issubclass(getattr(_native, node.name), Exception):
            there = {name for name in vars(getattr(_native, node.name)) if not name.startswith("_")}
            assert names_of(node.body) == there, node.name


def test_all_that_is_public_has_a_docstring():
    for name in pagefold.__all__:
        thing = getattr(pagefold, name)
        if not callable(thing):
            continue
        assert thing.__doc__, name
        for member, value in vars(thing).items() if isinstance(thing, type) else ():
            is_documented = inspect.getdoc(getattr(thing, member)) is not None
            assert member.startswith("_") or not callable(value) or is_documented, f"{name}.{member}"
