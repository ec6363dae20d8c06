"""Imports point down only, and pure packages have no clock, socket, thread or global random."""

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "holdfast"

# Top to bottom. A part may import the parts below it, and itself.
LAYERS = [
    "cli", "dashboard", "lab", "pipeline", "client", "runtime", "security", "journal", "sim", "control",
    "federation", "endpoint", "replication", "broker", "mqtt", "contract", "status", "config", "readers",
    "files", "units", "errors", "pieces",
]  # fmt: skip
PURE = {"control", "federation", "endpoint", "replication", "broker", "mqtt", "contract"}
IMPURE_MODULES = {
    "asyncio", "socket", "threading", "time", "random", "secrets", "os", "select", "selectors", "subprocess",
    "uvloop", "multiprocessing", "datetime", "signal",
}  # fmt: skip
FORBIDDEN_PAIRS = {("sim", "runtime"), ("runtime", "sim")}

IMPORT_LINE = re.compile(r"^\s*(?:from\s+([\w.]+)\s+c?import|c?import\s+([\w.]+))", re.MULTILINE)
C_CLOCKS = re.compile(r"\b(clock_gettime|gettimeofday|time\s*\(\s*NULL|rand\s*\(|sys/socket\.h|pthread)\b")


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_modules(path: Path) -> set[str]:
    text = path.read_text()
    if path.suffix == ".py" or path.suffix == ".pyi":
        found: set[str] = set()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: relative import; name the package in full"
                assert node.module is not None
                found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        return found
    return {first or second for first, second in IMPORT_LINE.findall(text)}


SOURCES = [
    path
    for suffix in ("*.py", "*.pyx", "*.pxd", "*.pyi")
    for path in sorted(SOURCE.rglob(suffix))
    if path.parent != SOURCE or path.stem in LAYERS
]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_down(path: Path) -> None:
    part = part_of(path)
    assert part in LAYERS, f"{part} is not a part of the design"
    for module in imported_modules(path):
        names = module.split(".")
        if names[0] != "holdfast" or len(names) < 2 or names[1] not in LAYERS:
            continue
        assert LAYERS.index(names[1]) >= LAYERS.index(part), f"{part} imports {names[1]}, which is above it"
        assert (part, names[1]) not in FORBIDDEN_PAIRS


@pytest.mark.parametrize(
    "path",
    [path for path in SOURCES if part_of(path) in PURE],
    ids=lambda path: str(path.relative_to(SOURCE)),
)
def test_pure_parts_have_no_clock_socket_or_random(path: Path) -> None:
    roots = {module.split(".")[0] for module in imported_modules(path)}
    assert not roots & IMPURE_MODULES
    if path.suffix in (".pyx", ".pxd"):
        assert not C_CLOCKS.search(path.read_text())


def test_every_compiled_module_has_a_type_stub() -> None:
    for path in SOURCE.rglob("*.pyx"):
        assert path.with_suffix(".pyi").exists(), f"{path.name} has no .pyi beside it"


def test_files_stay_readable() -> None:
    for path in SOURCES:
        assert len(path.read_text().splitlines()) <= 600, f"{path} is two files"
