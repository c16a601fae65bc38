"""Lifting: take functions and classes out of a release's sources without importing the release.

The model:

- A source file is a *module* whose top-level definitions are known by name from its syntax tree and
  brought to life one by one, when first needed. Names that a class body or a default value needs
  are brought before it; names inside a function only when the function runs.
- A name that a file imports from its own package is lifted from that file in turn. What comes from
  the standard library, torch or msgspec is imported for real. Anything else raises LiftError where
  it is used, naming the name and the file.
- Code keeps its line numbers and a file name such as
  ``sglang-0.5.19/srt/mem_cache/radix_cache.py``, so that tracebacks and recorded callers read as
  they would in the release.
- Of a class only the methods are taken that can be reached from the given ones through ``self``.
"""

import __future__

import ast
import builtins
import contextlib
import dataclasses
import importlib
import linecache
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from testbed.model.errors import BadInput, EnvironmentFault
from testbed.recorder.ownership import claim_file
from testbed.subjects.sglang.names import PACKAGE
from testbed.subjects.sglang.source import Source

_REAL = frozenset(sys.stdlib_module_names) | {"torch", "msgspec"}
_STAR = "*"
_ANNOTATIONS_ARE_TEXT = __future__.annotations.compiler_flag

Function = ast.FunctionDef | ast.AsyncFunctionDef


class LiftError(EnvironmentFault):
    """A name of the release that the testbed cannot bring to life; not the release's own fault."""


class Unliftable(BadInput):
    """A subject that cannot be lifted at all: another one has to be chosen."""


class LiftedClass(typing.NamedTuple):
    """A class cut down to what can be reached.

    methods: names taken, and for each every attribute name in its code, of whatever. reads:
    attributes that they use of ``self`` and that are no methods. set_up: makes anew those of them
    that the class's own set-up gives a value needing no parameter, but for those named.
    """

    cls: type
    methods: dict[str, frozenset[str]]
    reads: frozenset[str]
    set_up: Callable[..., dict[str, Any]]

    def mentions(self, name: str, method: str | None = None) -> bool:
        """Whether an attribute of that name occurs in the method, or in any; False where there is
        no such method.
        """
        if method is not None:
            return name in self.methods.get(method, frozenset())
        return any(name in used for used in self.methods.values())


class Library:
    """The lifted modules of one source. replaced: values for names, wherever imported."""

    def __init__(self, source: Source, replaced: dict[str, Any]) -> None:
        self.source = source
        self.replaced = replaced
        self._modules: dict[str, Module] = {}

    def module(self, name: str) -> "Module":
        """The module ``sglang.srt...``. Raises LiftError if its file was not kept."""
        if name not in self._modules:
            self._modules[name] = Module(self, name, self._path(name))
        return self._modules[name]

    def has(self, name: str) -> bool:
        """Whether the release has a file for the module ``name``."""
        return any(self.source.has(path) for path in _paths(name))

    def text(self, name: str) -> str:
        """Source text of the module ``name``. Raises LiftError if its file was not kept."""
        return self.source.read(self._path(name))

    def _path(self, name: str) -> str:
        for path in _paths(name):
            if self.source.has(path):
                return path
        raise LiftError(f"{self.source.name}: module {name} has no file to lift from")


def _paths(module: str) -> tuple[str, str]:
    inside = module.removeprefix(f"{PACKAGE}.").replace(".", "/")
    return f"{inside}.py", f"{inside}/__init__.py"


def _parsed(text: str, told: str) -> ast.Module:
    """Raises SyntaxError that names the file, for all that is no Python."""
    if "\0" in text:  # of which Python does not say where it is
        line = text[: text.find("\0")].count("\n") + 1
        raise SyntaxError("source code cannot contain null bytes", (told, line, None, None))
    try:
        return ast.parse(text, told)
    except (RecursionError, MemoryError) as error:
        raise SyntaxError("too deeply nested", (told, 1, None, None)) from error


class _Namespace(dict[str, Any]):
    """Globals of lifted code: a name that is missing is brought to life by its module."""

    def __init__(self, bring: Callable[[str], Any]) -> None:
        super().__init__()
        self._bring = bring

    def __missing__(self, name: str) -> Any:
        return self._bring(name)


class Module:
    """One source file of the release; ``name`` is its dotted name, ``path`` its place in the
    package.
    """

    def __init__(self, library: Library, name: str, path: str) -> None:
        self._library = library
        self._is_package = path.endswith("/__init__.py")
        self.name = name
        self.told = library.source.told(path)
        text = library.source.read(path)
        tree = _parsed(text, self.told)
        self._defined = dict(_definitions(tree))
        self._bound_otherwise = _bound_at_top(tree) - self._defined.keys()
        self._coming: set[str] = set()
        self.namespace = _Namespace(self._bring)
        self.namespace["__name__"] = self._register()
        _show_lines_in_tracebacks(self.told, text)
        claim_file(self.told)

    def has(self, name: str) -> bool:
        """Whether the file defines or imports ``name`` at its top level."""
        return name in self._defined

    def get(self, name: str) -> Any:
        """The live object called ``name``. Raises LiftError."""
        try:
            return self.namespace[name]
        except KeyError as error:
            raise LiftError(f"{self.told} has no name {name} to lift") from error

    def attributes_of_self(self, name: str) -> frozenset[str]:
        """Attributes and methods that the whole class of that name uses of ``self``. Raises
        LiftError.
        """
        methods = [item for item in self._class(name).body if isinstance(item, Function)]
        return frozenset(used for method in methods for used in _own_attributes(method))

    def lift_class(self, name: str, roots: Collection[str], cut: Collection[str]) -> LiftedClass:
        """The class with the methods that ``roots`` reach, but for those in ``cut``.

        Roots that the class does not have are left out. Raises LiftError.
        """
        node = self._class(name)
        taken, reads = _reachable(node, roots, cut)
        body: list[ast.stmt] = [
            item for item in node.body if isinstance(item, Function) and item.name in taken
        ]
        short = ast.ClassDef(
            name=name, bases=[], keywords=[], body=body or [ast.Pass()], decorator_list=[]
        )
        if sys.version_info >= (3, 12):
            short.type_params = []
        self._run(ast.fix_missing_locations(ast.copy_location(short, node)), name)
        cls: type = self.namespace[name]
        self._bring_ahead(cls)
        return LiftedClass(cls, _mentioned(body), frozenset(reads), self._set_up(node, reads))

    def _class(self, name: str) -> ast.ClassDef:
        node = self._defined.get(name)
        if not isinstance(node, ast.ClassDef):
            raise LiftError(f"{self.told} has no class {name} to lift")
        return node

    def _bring_ahead(self, cls: type) -> None:
        # So that ranks forked from here need not; what cannot be had is told where it is used.
        for name in sorted(_names_in(vars(cls).values())):
            with contextlib.suppress(LiftError):
                self._need(name)

    def _set_up(self, node: ast.ClassDef, reads: Collection[str]) -> Callable[..., dict[str, Any]]:
        values: dict[str, types.CodeType] = {}
        for attribute, value in _set_on_self(node):
            names = _eager_names(value)
            # Anything that looks at parameters or at the object itself is the testbed's to give.
            if attribute in reads and all(
                self.has(name) or hasattr(builtins, name) for name in names
            ):
                for name in names:
                    self._need(name)
                values[attribute] = self._compile(ast.Expression(value), "eval")
        return lambda *given: {
            name: eval(code, self.namespace) for name, code in values.items() if name not in given
        }

    def _bring(self, name: str) -> Any:
        node = self._defined.get(name)
        if node is None:
            if name in self._bound_otherwise or (
                _STAR in self._bound_otherwise and not hasattr(builtins, name)
            ):
                raise LiftError(f"{self.told}: {name} is bound in a way that is not lifted")
            raise KeyError(name)
        if name in self._coming:
            raise LiftError(f"{self.told}: lifting {name} needs {name} itself first")
        self._coming.add(name)
        try:
            if name in self._library.replaced:
                self.namespace[name] = self._library.replaced[name]
            elif isinstance(node, ast.Import | ast.ImportFrom):
                self.namespace[name] = self._import(node, name)
            elif isinstance(node, ast.If):
                raise LiftError(f"{self.told}: {name} depends on a condition, it is not lifted")
            else:
                self._run(node, name)
        finally:
            self._coming.remove(name)
        return dict.__getitem__(self.namespace, name)

    def _run(self, node: ast.stmt, name: str) -> None:
        for used in _eager_names(node) - {name}:
            self._need(used)
        module = ast.Module(body=[node], type_ignores=[])
        exec(self._compile(module, "exec"), self.namespace)

    def _need(self, name: str) -> None:
        if name not in self.namespace and name in self._defined:
            self._bring(name)

    def _compile(self, tree: ast.Module | ast.Expression, mode: str) -> types.CodeType:
        code: types.CodeType = compile(
            tree, self.told, mode, flags=_ANNOTATIONS_ARE_TEXT, dont_inherit=True
        )
        return code

    def _import(self, node: ast.Import | ast.ImportFrom, name: str) -> Any:
        alias = next(one for one in node.names if _bound_name(one) == name)
        if isinstance(node, ast.Import):
            imported = self._foreign(alias.name, name)
            return imported if alias.asname else sys.modules[name]
        source = self._absolute(node)
        if source.split(".")[0] != PACKAGE:
            return self._of_foreign(source, alias.name)
        if self._library.has(source) and self._library.module(source).has(alias.name):
            return self._library.module(source).get(alias.name)
        raise LiftError(f"{self.told}: name {name} of {source} cannot be lifted")

    def _of_foreign(self, module: str, name: str) -> Any:
        foreign = self._foreign(module, name)
        if not hasattr(foreign, name):
            raise LiftError(f"{self.told}: {module} as installed here has no name {name}")
        return getattr(foreign, name)

    def _foreign(self, module: str, name: str) -> types.ModuleType:
        try:
            if module.split(".")[0] in _REAL:
                return importlib.import_module(module)
        except ImportError as error:
            raise LiftError(f"{self.told}: name {name} comes from {module} ({error})") from error
        raise LiftError(f"{self.told}: name {name} comes from {module}, which is not at hand")

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        base = parts[: len(parts) - node.level + self._is_package]
        return ".".join([*base, *([node.module] if node.module else [])])

    def _register(self) -> str:
        # dataclasses look their class's module up by name, to tell ClassVar from a field.
        name = f"lifted.{self.told.removesuffix('.py').replace('/', '.')}"
        face = types.ModuleType(name)
        vars(face).update(
            typing=typing,
            dataclasses=dataclasses,
            ClassVar=typing.ClassVar,
            InitVar=dataclasses.InitVar,
        )
        sys.modules[name] = face
        return name


def _show_lines_in_tracebacks(told: str, source: str) -> None:
    # No modification time: linecache then never looks for a file of that name.
    linecache.cache[told] = (len(source), None, source.splitlines(keepends=True), told)


def _definitions(tree: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    for node in tree.body:
        yield from _defined_by(node)


def _defined_by(node: ast.stmt) -> Iterator[tuple[str, ast.stmt]]:
    if isinstance(node, Function | ast.ClassDef):
        yield node.name, node
    elif isinstance(node, ast.Import | ast.ImportFrom):
        for alias in node.names:
            yield _bound_name(alias), node
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Name):
                yield target.id, node
    elif isinstance(node, ast.AnnAssign):
        if isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node
    elif isinstance(node, ast.Try):
        for item in node.body:
            yield from _defined_by(item)
    elif isinstance(node, ast.If):
        for_types = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for item in (*node.body, *node.orelse):
            for name, inner in _defined_by(item):
                yield name, inner if for_types else node


def _bound_at_top(tree: ast.Module) -> set[str]:
    """Every name that running the file binds in it, however it does; _STAR for a star import."""
    names: set[str] = set()
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, Function | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update(map(_bound_name, node.names))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif not isinstance(node, ast.Lambda):
            waiting += ast.iter_child_nodes(node)
    return names


def is_only_read(name: str, texts: Iterable[str]) -> bool:
    """Whether all that the files do with ``name`` is to read it as an attribute, so that none of
    them can give an object that attribute. False for a file that cannot be parsed.
    """
    for text in texts:
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            return False
        if any(_gives(name, node) for node in ast.walk(tree)):
            return False
    return True


def _gives(name: str, node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == name and not isinstance(node.ctx, ast.Load)
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value == name  # setattr, __slots__
    # Definitions, names and parameters, imports, keywords: anything may come to be an attribute.
    held = (getattr(node, field, None) for field in ("name", "id", "arg", "asname"))
    return name in held


def _bound_name(alias: ast.alias) -> str:
    return alias.asname or alias.name.split(".")[0]


class _EagerNames(ast.NodeVisitor):
    """Names that running a statement reads at once: not those inside functions, nor annotations."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self.names.add(node.id)

    def visit_FunctionDef(self, node: Function) -> None:
        for part in (*node.decorator_list, *node.args.defaults, *node.args.kw_defaults):
            if part is not None:
                self.visit(part)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        for part in (*node.args.defaults, *node.args.kw_defaults):
            if part is not None:
                self.visit(part)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)


def _eager_names(node: ast.AST) -> set[str]:
    visitor = _EagerNames()
    visitor.visit(node)
    return visitor.names


def _names_in(members: Iterable[Any]) -> set[str]:
    """Names that the code of functions and properties mentions, nested functions included."""
    names: set[str] = set()
    waiting = [each for member in members for each in _codes(member)]
    while waiting:
        code = waiting.pop()
        names.update(code.co_names)
        waiting += [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]
    return names


def _codes(member: Any) -> list[types.CodeType]:
    functions = (member.fget, member.fset) if isinstance(member, property) else (member,)
    return [each.__code__ for each in functions if isinstance(each, types.FunctionType)]


def _reachable(
    node: ast.ClassDef, roots: Collection[str], cut: Collection[str]
) -> tuple[set[str], set[str]]:
    # A property has its getter and setter under one name, so a name can stand for several
    # functions.
    methods: dict[str, list[Function]] = {}
    for item in node.body:
        if isinstance(item, Function):
            methods.setdefault(item.name, []).append(item)
    taken: set[str] = set()
    reads: set[str] = set()
    waiting = [root for root in roots if root in methods]
    while waiting:
        name = waiting.pop()
        if name in taken:
            continue
        taken.add(name)
        for used in {used for method in methods[name] for used in _own_attributes(method)}:
            if used in methods and used not in cut:
                waiting.append(used)
            elif used not in methods:
                reads.add(used)
    return taken, reads


def _mentioned(methods: Iterable[ast.stmt]) -> dict[str, frozenset[str]]:
    names: dict[str, frozenset[str]] = {}
    for method in methods:
        if isinstance(method, Function):
            used = {inner.attr for inner in ast.walk(method) if isinstance(inner, ast.Attribute)}
            names[method.name] = names.get(method.name, frozenset()) | used
    return names


def _own_attributes(method: Function) -> Iterator[str]:
    for inner in ast.walk(method):
        if isinstance(inner, ast.Attribute) and _is_self(inner.value):
            yield inner.attr


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _set_on_self(node: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    """(attribute, value) of every plain ``self.attribute = value`` in __init__ and the resets."""
    for item in node.body:
        if isinstance(item, Function) and (item.name == "__init__" or "reset" in item.name):
            for statement in item.body:
                yield from _assigned_to_self(statement)


def _assigned_to_self(statement: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    else:
        return
    for target in targets:
        if not isinstance(target, ast.Attribute) or not _is_self(target.value):
            continue
        if statement.value is not None:
            yield target.attr, statement.value
