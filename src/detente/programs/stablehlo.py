"""StableHLO text, as jax and torch_xla print it, to a Module in HLO's words.

Line by line, for the printed form of one operation per line: what MLIR's printer writes, not everything that its
parser would take. A value of an outer region that an inner one uses becomes a parameter of the inner one (a constant
is copied), ``%0#1`` becomes a get-tuple-element, ``return`` a tuple: so that both readers fill the same nouns.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field, replace

from detente.programs.module import (
    Computation,
    Convolution,
    Dot,
    Instruction,
    Module,
    ProgramError,
    Shape,
    Spatial,
)
from detente.programs.products import ragged_work

_TENSOR = re.compile(r"tensor<((?:[^<>]|<[^<>]*>)*)>")
_LOCATION = re.compile(r'\s+loc\((?:#loc\d*|unknown|callsite.*|fused.*|".*)\)$')
_OPERATION = re.compile(
    r'^(?:(?P<results>%[^=]*?) = )?"?(?P<op>[a-z_]+\.)?(?P<name>[a-z_0-9]+)"?(?P<rest>.*)$'
)
# A string among an operation's attributes: what is written in it is no value.
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_VALUE = re.compile(r"%[\w$.\-]+(?:#\d+)?")
_ARGUMENT = re.compile(r"(%[\w$.\-]+): (tensor<(?:[^<>]|<[^<>]*>)*>|![\w.]+)")
_NAMES = {"dot_general": "dot", "broadcast_in_dim": "broadcast", "case": "conditional", "if": "conditional"}
_ELEMENTS = {"i1": "pred", "complex<f32>": "c64", "complex<f64>": "c128"}


@dataclass
class _Region:
    name: str
    instructions: list[Instruction] = field(default_factory=list)
    values: dict[str, int] = field(default_factory=dict)
    opener: int | None = None


def read_stablehlo(text: str) -> Module:
    """The module in StableHLO text. Raises ProgramError with the line that does not fit."""
    reader = _Reader()
    for number, raw in enumerate(text.splitlines(), 1):
        line = _LOCATION.sub("", raw.strip())
        if not line or line.startswith(("#", "//", "}loc")):
            continue
        try:
            reader.line(line)
        except (KeyError, IndexError, ValueError) as error:
            raise ProgramError(f"StableHLO line {number} cannot be read ({error!r}): {line[:120]}") from error
    if "main" not in reader.done:
        raise ProgramError("no StableHLO: there is no function @main in it")
    return Module(reader.name, reader.done, "main", reader.lines, reader.aliased, reader.digest.hexdigest())


class _Reader:
    def __init__(self) -> None:
        self.name = ""
        self.done: dict[str, Computation] = {}
        self.stack: list[_Region] = []
        self.lines = 0
        self.aliased = 0
        self.digest = hashlib.sha256()
        self.anonymous = 0
        self.carried: list[str] = []

    def line(self, line: str) -> None:
        self.lines += 1
        if line.startswith("module"):
            self.name = (re.search(r"@([\w.\-]+)", line) or [line, ""])[1]
            return
        self.digest.update(line.encode() + b"\n")
        if line.startswith("func.func"):
            self._function(line)
        elif not self.stack:
            return  # of the module itself: a closing brace, ``sdy.mesh``
        elif line == "cond {":
            self._open(self._last(), carried=True)
        elif line.startswith("} do {"):
            opener = self._close().opener
            self._open(opener, carried=True)
        elif line.startswith("reducer("):
            self._open(self._last())
            self._arguments(line)
        elif line.startswith("^"):
            self._arguments(line)
        elif line.startswith("}, {"):
            self._open(self._close().opener)
        elif line.startswith("})"):
            opener = self._close().opener
            if opener is None:
                raise ValueError("the end of a region that nothing opened")
            region = self.stack[-1]
            _, kinds = _types(line)
            self._retype(region, opener, kinds)
        elif line.startswith("}"):
            if self.stack:
                self._close()
        else:
            self._operation(line)

    def _function(self, line: str) -> None:
        name = re.search(r"@([\w.$\-]+|\"[^\"]*\")\(", line)
        if name is None or not line.endswith("{"):
            raise ValueError("a function without a name or a body")
        self.stack.append(_Region(name[1].strip('"')))
        head = line[: line.rfind("->")] if "->" in line else line
        marks = self._arguments(head)
        if name[1] == "main":
            for shape, attributes in marks:
                if "tf.aliasing_output" in attributes or "jax.buffer_donor = true" in attributes:
                    self.aliased += shape.bytes

    def _arguments(self, line: str) -> list[tuple[Shape, str]]:
        """Add the arguments that a line declares as parameters; each with the text of its attributes."""
        region, found = self.stack[-1], []
        line = _STRING.sub('""', line)
        matches = list(_ARGUMENT.finditer(line))
        taken = sum(i.opcode == "parameter" for i in region.instructions)
        for k, match in enumerate(matches):
            shape = (_shapes(match[2]) or [Shape("token")])[0]
            region.values[match[1]] = len(region.instructions)
            region.instructions.append(Instruction("parameter", (shape,), number=taken + k))
            end = matches[k + 1].start() if k + 1 < len(matches) else len(line)
            found.append((shape, line[match.end() : end]))
        return found

    def _last(self) -> int:
        return len(self.stack[-1].instructions) - 1

    def _open(self, opener: int | None, carried: bool = False) -> None:
        """Enter a region of the operation at ``opener``; a while's regions name the state as the operation does."""
        if opener is None:
            raise ValueError("a region that nothing opened")
        outer = self.stack[-1]
        self.anonymous += 1
        region = _Region(f"region.{self.anonymous}", opener=opener)
        self.stack.append(region)
        if carried:
            for k, (name, shape) in enumerate(
                zip(self.carried, outer.instructions[opener].results, strict=True)
            ):
                region.values[name] = len(region.instructions)
                region.instructions.append(Instruction("parameter", (shape,), number=k))

    def _close(self) -> _Region:
        region = self.stack.pop()
        if not region.instructions:
            raise ValueError("an empty region")
        self.done[region.name] = Computation(
            region.name, tuple(region.instructions), len(region.instructions) - 1
        )
        if region.opener is not None:
            home = self.stack[-1]
            one = home.instructions[region.opener]
            home.instructions[region.opener] = replace(one, called=(*one.called, region.name))
            if one.opcode == "while" and not one.called:
                # The body's names are the same as the condition's.
                self.carried = [n for n, at in region.values.items() if _is_carried(region, n, at)]
        return region

    def _resolve(self, name: str) -> int:
        """The position of a value in the current region."""
        region = self.stack[-1]
        if name in region.values:
            return region.values[name]
        stem, _, element = name.partition("#")
        if element and stem in region.values:
            whole = region.instructions[region.values[stem]]
            found = Instruction(
                "get-tuple-element",
                (whole.results[int(element)],),
                (region.values[stem],),
                number=int(element),
            )
        else:
            found = self._captured(name)
        region.instructions.append(found)
        region.values[name] = len(region.instructions) - 1
        return region.values[name]

    def _captured(self, name: str) -> Instruction:
        stem, _, element = name.partition("#")
        for outer in reversed(self.stack[:-1]):
            at = outer.values.get(name, outer.values.get(stem))
            if at is not None:
                one = outer.instructions[at]
                if one.opcode == "constant":
                    return one
                plain = element and name not in outer.values
                shape = one.results[int(element)] if plain else one.shape
                return Instruction("parameter", (shape,), number=-1)
        raise ValueError(f"{name} is not defined")

    def _operation(self, line: str) -> None:
        match = _OPERATION.match(line)
        if match is None:
            raise ValueError("not an operation")
        name, rest = match["name"], match["rest"]
        opens = rest.endswith("({")
        body, kinds = (rest, []) if opens else _types(rest)
        plain = _STRING.sub('""', body)
        if name == "return":
            operands = tuple(self._resolve(v) for v in _VALUE.findall(plain))
            self._append(Instruction("tuple", tuple(kinds), operands), [])
            return
        opcode = _NAMES.get(name, name).replace("_", "-")
        called: tuple[str, ...] = ()
        if name == "while":
            pairs = re.findall(r"(%[\w$.\-]+) = (%[\w$.\-]+(?:#\d+)?)", plain)
            self.carried = [left for left, _ in pairs]
            refs = [right for _, right in pairs]
        else:
            refs = _VALUE.findall(plain)
        operands = tuple(self._resolve(v) for v in refs)
        names = _result_names(match["results"])
        wanted = sum(count for _, count in names)
        results = tuple(kinds[-wanted:]) if wanted else ()
        if name in ("call", "composite"):
            target = re.search(r"decomposition = @([\w.$\-]+)", body) or re.search(r"@([\w.$\-]+)", body)
            if target is None:
                raise ValueError("a call of nothing")
            called = (target[1],)
            opcode = "call"
        at = len(self.stack[-1].instructions)
        self._append(self._instruction(opcode, body, results, operands, called), names)
        if opens:
            self._open(at)

    def _append(self, one: Instruction, names: list[tuple[str, int]]) -> None:
        region = self.stack[-1]
        at = len(region.instructions)
        region.instructions.append(one)
        if len(names) == 1:
            region.values[names[0][0]] = at
        for k, (name, _) in enumerate(names if len(names) > 1 else []):
            # ``%output, %mean, %var = batch_norm_training``: each name is an element.
            region.values[name] = len(region.instructions)
            shape = one.results[k] if k < len(one.results) else Shape("token")
            region.instructions.append(Instruction("get-tuple-element", (shape,), (at,), number=k))

    def _instruction(
        self,
        opcode: str,
        body: str,
        results: tuple[Shape, ...],
        operands: tuple[int, ...],
        called: tuple[str, ...],
    ) -> Instruction:
        home = self.stack[-1].instructions
        one = Instruction(opcode, results, operands, called)
        if opcode == "dot":
            contracting = re.search(r"contracting_dims = \[([\d, ]*)\]", body)
            batch = re.search(r"batching_dims = \[([\d, ]*)\]", body)
            plain = (len(home[operands[0]].shape.dims) - 1,)  # the plain ``stablehlo.dot``
            return replace(
                one,
                detail=Dot(
                    _numbers(contracting[1]) if contracting else plain, _numbers(batch[1]) if batch else ()
                ),
            )
        if opcode == "ragged-dot":
            left, right = (home[i].shape for i in operands[:2])
            names = ("rhs_batching_dimensions", "rhs_contracting_dimensions", "rhs_group_dimensions")
            lists = (re.search(rf"{name} = \[([\d, ]*)\]", body) for name in names)
            taken = {d for found in lists if found for d in _numbers(found[1])}
            return replace(one, detail=ragged_work(left, right, taken))
        if opcode == "convolution":
            left, right = (home[i].shape for i in operands[:2])
            return replace(one, detail=_convolution(body, left, right, results[0]))
        if opcode == "constant":
            written = body.partition("dense<")[2]
            return replace(
                one, integers=_integers(body, results[0]), splat=bool(written) and written[0] not in '["'
            )
        if opcode == "reduce":
            over = re.search(r"dimensions = (?:array<i64: |\[)([\d, ]*)", body)
            adds = re.search(r" applies \w+\.(\w+) ", body)
            target = adds[1] if adds else ""
            return replace(one, reduced=_numbers(over[1]) if over else (), target=target)
        if opcode == "compare":
            way = re.search(r"\b(EQ|NE|LT|LE|GT|GE)\b", body)
            return replace(one, target=way[1] if way else "")
        if opcode == "custom-call":
            target = re.search(r'@([\w.$:\-]+)|@"([^"]*)"|call_target_name = "([^"]*)"', body)
            return replace(one, target=next((g for g in target.groups() if g), "") if target else "")
        return one

    def _retype(self, region: _Region, at: int, kinds: list[Shape]) -> None:
        """The types of an operation with regions stand behind them. Names bound to its elements follow."""
        one = region.instructions[at]
        region.instructions[at] = replace(one, results=tuple(kinds))
        for k, other in enumerate(region.instructions[at + 1 :], at + 1):
            if other.opcode == "get-tuple-element" and other.operands == (at,) and other.number < len(kinds):
                region.instructions[k] = replace(other, results=(kinds[other.number],))


def _is_carried(region: _Region, name: str, at: int) -> bool:
    one = region.instructions[at]
    return one.opcode == "parameter" and one.number >= 0 and not name.count("#")


def _result_names(text: str | None) -> list[tuple[str, int]]:
    """``%0:3`` is one name of three results; ``%a, %b`` are two names of one each."""
    found = []
    for part in (text or "").split(","):
        name, _, many = part.strip().partition(":")
        if name:
            found.append((name, int(many or 1)))
    return found


def _types(rest: str) -> tuple[str, list[Shape]]:
    """The part before the type, and the result types (all that are listed where there is no arrow)."""
    body, found, kind = rest.rpartition(" : ")
    if not found:
        return rest, []
    return body, _shapes(kind.rpartition("->")[2])


def _shapes(text: str) -> list[Shape]:
    return [_shape(inner) for inner in _TENSOR.findall(text)]


def _shape(inner: str) -> Shape:
    core = inner.split(",", maxsplit=1)[0].strip()  # an encoding may follow
    match = re.match(r"((?:[\d?]+x)*)(.*)$", core)
    assert match is not None
    dims = tuple(0 if d == "?" else int(d) for d in match[1].split("x") if d)
    kind = match[2]
    if kind in _ELEMENTS:
        return Shape(_ELEMENTS[kind], dims)
    if re.fullmatch(r"u?i\d+", kind):
        return Shape(("u" if kind[0] == "u" else "s") + kind.lstrip("ui"), dims)
    return Shape(kind.lower(), dims)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"-?\d+", text))


def _integers(body: str, shape: Shape) -> tuple[int, ...]:
    if shape.dtype[0] not in "su" or shape.elements > 16 or '"' in body:
        return ()
    found = _numbers(body.partition("dense<")[2])
    return found * shape.elements if len(found) == 1 else found


def _convolution(body: str, source: Shape, kernel: Shape, out: Shape) -> Convolution:
    """``dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [2, 2], pad = [[0, 1], ...]}``"""
    where = re.search(r"\[([^\]]*)\]x\[([^\]]*)\]->\[([^\]]*)\]", body)
    if where is None:
        raise ValueError("a convolution without dim_numbers")
    left, right, result = (re.split(r",\s*", part) for part in where.groups())

    def window(key: str, otherwise: int) -> tuple[int, ...]:
        found = re.search(rf"{key} = \[((?:\[[^\]]*\]|[^\[\]])*)\]", body)
        return _numbers(found[1]) if found else (otherwise,) * (2 * rank if key == "pad" else rank)

    rank = len(left) - 2
    stride, pad = window("stride", 1), window("pad", 0)
    base, dilation = window("lhs_dilate", 1), window("rhs_dilate", 1)
    spatial = tuple(
        Spatial(
            size=kernel.dims[right.index(str(k))],
            input=source.dims[left.index(str(k))],
            output=out.dims[result.index(str(k))],
            stride=stride[k],
            low=pad[2 * k],
            window_dilation=dilation[k],
            base_dilation=base[k],
        )
        for k in range(rank)
    )
    return Convolution(
        spatial,
        batch=out.dims[result.index("b")],
        out_features=out.dims[result.index("f")],
        in_features=kernel.dims[right.index("i")],
    )
