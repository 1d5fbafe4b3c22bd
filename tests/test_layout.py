"""The package's own rules, read from its syntax trees."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "strictq"

# A module may import its own layer and those below. A module that is not here has no place yet: give it one.
LAYERS = [
    {"_values", "_platform"},
    {"_sql", "_net"},
    {"_store"},
    {"replication"},  # above the store's api; a queue configures it
    {"_client"},  # what a verb does; it knows none of the objects that users hold
    {"consumer", "delivery", "handle", "transaction", "queue"},
    {"aio"},
    {"opening"},
    {"worker", "history", "remote"},
    {"app", "forwarding", "otel", "relaying"},
    {"spark", "server"},
    {"testing"},
    {"demo", "bench"},
    {"cli"},
]
LAYER = {name: i for i, layer in enumerate(LAYERS) for name in layer}

# import → the parts of the package that may have it
ONLY_IN = {
    "apsw": {"_store", "bench"},  # bench: SQLite without the queue
    "cronsim": {"worker"},
    "rich": {"cli"},
    "click": {"cli"},
    "matplotlib": {"history"},
    "pyspark": {"spark"},
    "py4j": {"spark"},
    "pyarrow": {"history", "spark"},
    "pandas": {"spark"},
    "uvicorn": {"server"},
    "botocore": {"server", "remote"},
    "boto3": {"testing", "remote"},
    "opentelemetry": {"otel"},
    "pytest": set(),  # the plugin lies beside the package: what pytest loads everywhere must not import it
    "numpy": {"spark"},
    "s3fs": {"replication"},
    "trio": {"aio"},  # late, where trio runs already: see test_import_is_light
}
NEVER = {"pickle", "cPickle", "marshal", "shelve", "dill", "sqlite3"}

FILES = sorted(PACKAGE.rglob("*.py"))
BENCHMARKS = sorted((ROOT / "benchmarks").rglob("*.py"))
EXAMPLES = sorted((ROOT / "docs" / "examples").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

# Tests that may know the inside of the store: those about it, and those that look at raw files and break them on purpose.
INSIDE = {"store", "power", "faults"}
INSIDE_SUPPORT = {
    "support/internals.py",  # hands out the inside
    "support/injection.py",  # breaks it for tests that must not know it
    "support/guarded/sitecustomize.py",  # stands between strictq and apsw
    "support/faults.py", "support/flips.py", "support/format_2.py", "support/formats.py",
    "support/folds.py", "support/powercut.py", "support/powercut_reading.py", "support/powercut_run.py",
    "support/outboxes.py",  # the program's own database
    "support/lane_file.py", "support/lane_walk.py", "support/moved_ranges.py", "support/outside_reader.py",
    "support/powercut_verify.py", "support/programs.py", "support/scans.py", "support/second_process.py",
    "support/small_scope.py", "support/witness.py",
}  # fmt: skip


def part(path: Path) -> str:
    """The top-level module or package a file belongs to: "_store" for strictq/_store/shard.py."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def nodes(path: Path) -> list[ast.AST]:
    """Every node of a file. To walk a tree takes most of the time of a check."""
    return list(ast.walk(tree(path)))


@cache
def imports(path: Path) -> list[tuple[int, str]]:
    """(line, absolute dotted name) of every import, wherever it stands."""
    return list(_imports(path))


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    package = list(path.relative_to(ROOT).parts[:-1])
    for node in nodes(path):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"


def imports_at_the_top(path: Path) -> Iterator[tuple[int, str]]:
    """Those that run when the module is imported: not in a function, not under TYPE_CHECKING."""
    late = {
        line
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    return ((line, name) for line, name in imports(path) if line not in late)


def case(path: Path) -> str:
    return str(path.relative_to(PACKAGE if path.is_relative_to(PACKAGE) else ROOT))


def of_each(paths: Sequence[Path]) -> Callable[[Callable[[Path], None]], Callable[[], None]]:
    """One test for all of these files: a test for each would be thousands, most of whose time is pytest's."""

    def decorated(check: Callable[[Path], None]) -> Callable[[], None]:
        def test() -> None:
            wrong = []
            for path in paths:
                try:
                    check(path)
                except AssertionError as e:
                    wrong.append(f"{case(path)}: {e}")
            assert not wrong, "\n".join(wrong)

        test.__doc__ = check.__doc__
        return test

    return decorated


def test_a_file_that_fails_a_check_is_named() -> None:
    @of_each(FILES[:3])
    def check(path: Path) -> None:
        assert path != FILES[1], "it is the second"

    with pytest.raises(AssertionError, match=f"^{re.escape(case(FILES[1]))}: it is the second"):
        check()


def test_there_is_something_to_check() -> None:
    assert min(map(len, (FILES, BENCHMARKS, EXAMPLES))) > 2


def table_of_rooms(heading: str) -> dict[str, list[str]]:
    """Room → the other cells of its row, of a table of CONTRIBUTING.md."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition(f"| {heading} |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]
    return {name: cells for room, *cells in rows for name in re.findall(r"`(\w+)`", room)}


def test_contributing_names_every_room_with_its_floor() -> None:
    rooms = table_of_rooms("room")
    assert {name: int(floor) for name, (floor, _) in rooms.items()} == {name: floor + 1 for name, floor in LAYER.items()}
    there = {part(path) for path in FILES} - {"__init__", "__main__"} | {"_sql"}
    assert set(rooms) == there
    assert set(table_of_rooms("room of the store")) == set(FLOORS)
    assert "CONTRIBUTING.md" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_contributing_says_where_a_change_reaches() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("| change |")[2].partition("\n\n")[0]
    for line in text.splitlines()[2:]:
        folder = ""
        _, *cells = line.strip("|").split("|")
        for name in re.findall(r"`([a-z_/.]+)`", " ".join(cells)):
            folder = name.rpartition("/")[0] or folder  # a name without a folder is in the one before, or in none
            places = [PACKAGE / name, PACKAGE / folder / name]
            assert any(place.exists() or place.with_suffix(".py").exists() for place in places), f"{name} in: {line}"


@of_each(FILES)
def test_imports_point_down(path: Path) -> None:
    here = part(path)
    if here in {"__init__", "__main__"}:
        return
    assert here in LAYER, f"strictq/{here} has no place in LAYERS"
    for line, name in imports(path):
        names = name.split(".")
        if names[0] != "strictq" or len(names) == 1:
            continue
        other = names[1]
        if (PACKAGE / other).is_dir() or (PACKAGE / f"{other}.py").exists():
            assert other in LAYER, f"strictq/{other} has no place in LAYERS"
            assert LAYER[other] <= LAYER[here], f"{path}:{line}: {here} must not import {other}"
        else:
            # `from strictq import x`: the public interface is there for what stands on it.
            assert LAYER[here] >= LAYER["testing"], f"{path}:{line} imports the package's __init__ from below it"


def behind_the_api(path: Path) -> Iterator[str]:
    """Every place of a file that imports a module of the store other than its api, or reaches through the api."""
    for line, name in imports(path):
        if name.startswith("strictq._store") and not re.match(r"strictq\._store\.api(\.|$)", name):
            yield f"{path}:{line} imports {name}"
    for node in nodes(path):
        if isinstance(node, ast.Attribute) and node.attr == "_store":
            yield f"{path}:{node.lineno} reaches through the api: {ast.unparse(node)}"


@of_each([*(path for path in FILES if part(path) != "_store"), *BENCHMARKS, *EXAMPLES])
def test_the_store_has_one_door(path: Path) -> None:
    assert list(behind_the_api(path)) == []


# The floors of the store, top first. A room may import its own modules, and those of the rooms named here, which are below it.
FLOORS = {
    "api": {"salvage", "bulk", "whole", "shipping", "shard", "catalog", "commit", "lane", "disk"},
    "salvage": {"bulk", "whole", "shard", "catalog", "commit", "tables", "lane", "disk"},
    "bulk": {"whole", "shard", "commit", "lane"},
    "whole": {"shipping", "shard", "migrating", "catalog", "commit", "tables", "lane", "disk"},
    "shipping": {"shard", "catalog", "commit", "disk"},
    "shard": {"catalog", "commit", "tables", "lane", "disk"},
    "migrating": {"commit", "tables", "lane", "disk"},
    "catalog": {"commit", "tables", "lane", "disk"},
    "commit": {"lane", "disk"},
    "tables": {"lane"},
    "lane": set(),
    "disk": set(),
}
STORE = [path for path in FILES if part(path) == "_store" and path.parent != PACKAGE / "_store"] + [PACKAGE / "_store" / "api.py"]


def room(path: Path) -> str:
    """The room of the store that a file lies in."""
    return path.relative_to(PACKAGE / "_store").parts[0].removesuffix(".py")


def rooms_below(path: Path) -> Iterator[tuple[int, str]]:
    """(line, room) of every import of another room of the store: those in functions and for type checkers, too."""
    for line, name in imports(path):
        if name.startswith("strictq._store.") and (other := name.split(".")[2]) != room(path):
            yield line, other


@of_each(STORE)
def test_the_floors_of_the_store_point_down(path: Path) -> None:
    here = room(path)
    assert here in FLOORS, f"strictq/_store/{here} has no place in FLOORS"
    for line, other in rooms_below(path):
        assert other in FLOORS[here], f"{path}:{line}: {here} must not import {other}"
    for line, name in imports(path):
        if here == "lane":
            assert not name.startswith(("apsw", "strictq._sql")), f"{path}:{line}: the rules of a lane know no SQL"


def test_the_floors_of_the_store_are_named_top_first_and_used() -> None:
    order = list(FLOORS)
    used: dict[str, set[str]] = {name: set() for name in order}
    for path in STORE:
        used[room(path)] |= {other for _, other in rooms_below(path)}
    for name, below in FLOORS.items():
        assert all(order.index(other) > order.index(name) for other in below), f"{name} is not above all of {below}"
        assert below <= used[name], f"{name} no longer imports {below - used[name]}"


def may_look_inside(path: Path) -> bool:
    """Whether a file of the tests may look behind the store's api, or at its files with SQL."""
    place = path.relative_to(ROOT / "tests")
    return place.parts[0] in INSIDE or str(place) in INSIDE_SUPPORT


def looks_inside(path: Path) -> Iterator[str]:
    """Every place of a file of the tests that does."""
    yield from behind_the_api(path)
    for line, name in imports(path):
        if re.match(r"(tests\.support\.internals|apsw|sqlite3|strictq\._sql)\b", name):
            yield f"{path}:{line} imports {name}"


@of_each([path for path in TESTS if not may_look_inside(path)])
def test_other_tests_do_not_know_the_inside_of_the_store(path: Path) -> None:
    assert list(looks_inside(path)) == []


@of_each([ROOT / "tests" / place for place in sorted(INSIDE_SUPPORT)])
def test_a_permission_to_look_inside_is_needed(path: Path) -> None:
    assert list(looks_inside(path)), "needs none"


@of_each(EXAMPLES)
def test_examples_use_public_names_only(path: Path) -> None:
    for line, name in imports(path):
        if name.startswith("strictq"):
            assert "._" not in name, f"{path}:{line} imports {name}"
    for node in nodes(path):
        if isinstance(node, ast.Attribute) and re.match(r"_[a-z]", node.attr):
            assert ast.unparse(node.value) in {"self", "cls"}, f"{path}:{node.lineno}: {ast.unparse(node)} is private"


def test_a_way_round_the_api_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    file = tmp_path / "case.py"
    file.write_text("from strictq._store import shard, api\nfrom strictq._store.api import Storage\nq._storage._store.shards\n")
    assert [found.removeprefix(str(file)) for found in behind_the_api(file)] == [
        ":1 imports strictq._store.shard",
        ":3 reaches through the api: q._storage._store",
    ]


def module_graph() -> dict[str, set[str]]:
    """Each module, with those that its imports at module level name: also those for type checkers only."""
    names = {path: ".".join(("strictq", *path.relative_to(PACKAGE).with_suffix("").parts)) for path in FILES}
    known = {path: name.removesuffix(".__init__") for path, name in names.items()}
    graph: dict[str, set[str]] = {}
    for path, name in known.items():
        late = {
            line
            for node in nodes(path)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }
        graph[name] = set()
        for line, target in imports(path):
            while target and target not in known.values():
                target = target.rpartition(".")[0]  # what is imported may be a name in a module
            if target and target != name and line not in late:
                graph[name].add(target)
    return graph


def test_no_module_imports_itself_over_others() -> None:
    graph = module_graph()
    assert "strictq.delivery" in graph["strictq.queue"]
    assert "strictq._store.whole.store" in graph["strictq._store.api"]
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as e:
        pytest.fail(" imports ".join(reversed(e.args[1])))


def test_a_circle_of_imports_is_found() -> None:
    graph = module_graph()
    graph["strictq.delivery"].add("strictq.queue")
    with pytest.raises(CycleError):
        TopologicalSorter(graph).prepare()


@of_each(FILES)
def test_the_package_itself_is_imported_only_from_above(path: Path) -> None:
    if LAYER.get(part(path), len(LAYERS)) >= LAYER["testing"]:
        return
    for line, name in imports(path):
        assert name != "strictq", f"{path}:{line} imports strictq from below it"


@of_each(FILES)
def test_dependencies_stay_in_their_place(path: Path) -> None:
    for line, name in imports(path):
        top = name.partition(".")[0]
        assert top not in NEVER, f"{path}:{line} imports {top}"
        if top in ONLY_IN:
            assert part(path) in ONLY_IN[top], f"{path}:{line}: {top} may be imported only in {ONLY_IN[top]}"


def test_what_lies_beside_the_package_is_shipped_and_checked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    targets = project["tool"]["hatch"]["build"]["targets"]
    found_by_spark = "pyspark_strictq.py"
    beside = {path.name for path in ROOT.glob("*.py")}
    assert found_by_spark in beside
    assert beside < set(targets["wheel"]["packages"])
    assert beside < set(targets["sdist"]["include"])
    assert {f"{name}.py" for name in project["tool"]["mypy"]["modules"]} == beside
    entries = [*project["project"]["scripts"].values(), *project["project"]["entry-points"]["pytest11"].values()]
    assert {f"{entry.partition(':')[0]}.py" for entry in entries} == beside - {found_by_spark}


def test_the_command_imports_its_extra_late() -> None:
    for line, name in imports_at_the_top(PACKAGE / "cli" / "__init__.py"):
        assert name.partition(".")[0] not in {"click", "rich"}, f"strictq/cli/__init__.py:{line}"


@of_each(FILES)
def test_sql_is_never_put_together(path: Path) -> None:
    for node in nodes(path):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            if name in {"execute", "executemany"} and node.args:
                assert not _put_together(node.args[0]), f"{path}:{node.lineno}: SQL is put together from pieces"


def _put_together(sql: ast.expr) -> bool:
    if isinstance(sql, ast.JoinedStr):
        return any(isinstance(v, ast.FormattedValue) for v in sql.values)
    if isinstance(sql, ast.BinOp):
        return isinstance(sql.op, ast.Add | ast.Mod)
    return isinstance(sql, ast.Call) and isinstance(sql.func, ast.Attribute) and sql.func.attr in {"format", "join"}


def statements() -> Iterator[tuple[str, list[str], str]]:
    """(file:name, comment lines, the statement on one line) of every named block."""
    for path in sorted((PACKAGE / "_sql").glob("*.sql")):
        parts = re.split(r"^-- name: (\w+)\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        for name, body in zip(parts[1::2], parts[2::2], strict=True):
            lines = body.strip().splitlines()
            sql = " ".join(line.partition("--")[0].strip() for line in lines if not line.startswith("--"))
            yield f"{path.stem}.{name}", [line for line in lines if line.startswith("--")], sql


def test_every_statement_says_what_it_is_for_and_stands_once() -> None:
    known: dict[str, str] = {}
    found = list(statements())
    assert len(found) > 200
    for name, comment, sql in found:
        assert comment, f"{name} has no comment: who runs it, what it takes and returns, which index it uses"
        assert sql not in known, f"{name} is {known[sql]} once more"
        known[sql] = name


def test_a_statement_names_the_modules_that_run_it() -> None:
    """Before the first colon of its comment: `module`, or `module.function`, by the names that they have now."""
    runs: dict[str, set[str]] = {}
    functions: dict[str, set[str]] = {}
    for path in FILES:
        for node in nodes(path):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id.isupper():
                file = "floor" if node.value.id == "_SQL" else node.value.id.lower()
                runs.setdefault(f"{file}.{node.attr}", set()).add(path.stem)
            elif isinstance(node, ast.FunctionDef):
                functions.setdefault(path.stem, set()).add(node.name)
    for name, comment, _ in statements():
        head = " ".join(comment).removeprefix("--").partition(":")[0]
        modules = runs.get(name, set())
        if name.endswith(".schema"):
            continue
        assert modules, f"nothing runs {name}"
        assert modules & set(re.findall(r"\w+", head)), f"{name} is run by {modules}, and its comment says: {head}"
        for module, function in re.findall(r"\b([a-z_]+)\.([a-z_]+)", head):
            assert module in modules, f"{name} is not run by {module}"
            assert function in functions[module], f"there is no {module}.{function}, which {name} names"


@of_each(FILES)
def test_nothing_runs_text_as_code(path: Path) -> None:
    for node in nodes(path):
        if isinstance(node, ast.Call):
            assert not (isinstance(node.func, ast.Name) and node.func.id in {"eval", "exec"}), f"{path}:{node.lineno}"
            for keyword in node.keywords:
                shell = keyword.arg == "shell" and not (isinstance(keyword.value, ast.Constant) and keyword.value.value is False)
                assert not shell, f"{path}:{node.lineno}: a shell"


def test_a_class_name_means_one_class() -> None:
    known: dict[str, str] = {}
    for path in FILES:
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef):
                assert node.name not in known, f"{case(path)}: {node.name} is a class of {known[node.name]}, too"
                known[node.name] = case(path)


@of_each([path for path in FILES if path.name not in {"__init__.py", "__main__.py"}])
def test_a_module_does_more_than_export_again(path: Path) -> None:
    exports = (ast.Import, ast.ImportFrom, ast.Expr)  # and the docstring
    more = any(not isinstance(node, exports) and "__all__" not in ast.unparse(node) for node in tree(path).body)
    assert more, f"{case(path)} only re-exports"


def test_parts_of_a_library_are_imported_before_use() -> None:
    """Whether `pyarrow.compute` is there after `import pyarrow` depends on what else the process imported before."""
    used: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        for node in nodes(path):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("pa", "pyarrow"):
                used.add(node.attr)
    assert used > {"Table", "RecordBatch"}
    program = "import sys, pyarrow; print(*(name for name in sys.argv[1:] if not hasattr(pyarrow, name)))"
    missing = subprocess.run([sys.executable, "-c", program, *used], check=True, capture_output=True, text=True).stdout
    assert missing.split() == []
