"""The table of factors: what an arm may set, what that changes, and how it is known that it was changed.

A row of the table is a description; how a stack builds its step under it stands in the stack. A factor that is switched
off may do nothing at all: of XLA's passes, ``fusion`` takes a GPT-2 from 326 kernels to 1032, and ``cpu-fusion``,
``cpu-instruction-fusion`` and ``multi-output-fusion`` are names that it takes in silence. So every factor has a check,
a rule over what the compiler made (programs/built.py), and an arm that fails it is no arm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import eq
from typing import Any

from detente.records.arm import NO_ARM, Arm
from detente.records.fault import UsageFault
from detente.records.nearest import did_you_mean

# What a compiler made, as programs/built.py tells it.
Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Check:
    """That a fact of the step moved, from ``before`` the factor was set to ``after``. For ``program``, ``before`` is
    the stack that the program is taken from.

    fact   key of the facts
    title  how the fact is called, in words
    must   what it has to do, in words
    holds  whether it did
    keeps  another fact and its title, which has to stay as it is: what would be a second cause
    """

    fact: str
    title: str
    must: str
    holds: Callable[[Any, Any], bool]
    keeps: tuple[str, str] | None = None

    def failure(self, before: Facts, after: Facts) -> str:
        """Why the factor was not switched, with the figures; empty where it was."""
        if why := _failure(self.fact, self.title, self.must, self.holds, before, after):
            return why
        return _failure(*self.keeps, "stay the same", eq, before, after) if self.keeps else ""


def _failure(
    fact: str, title: str, must: str, holds: Callable[[Any, Any], bool], before: Facts, after: Facts
) -> str:
    if fact not in before or fact not in after:
        return f"nobody knows the {title}: there is no captured program"
    old, new = before[fact], after[fact]
    if holds(old, new):
        return ""
    return f"the {title} must {must}: {_shown(old)} before, {_shown(new)} under the arm"


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)[:12] or "none"


# By how much kernels must become more: less than that is what any change of a program does.
_MORE = 1.05


@dataclass(frozen=True)
class Factor:
    """One factor.

    code      as an arm names it
    title     the cause, as a waterfall's bar is called
    what      what a setting changes
    settings  which ones there are; ``STACK`` stands for the name of a stack that gives its program away
    stacks    which can be run under it; what one of them cannot build after all, it says when it is asked to
    regions   of the contract, in which there is something to switch
    environments  setting -> the environment whose interpreter runs the row; the stack's own where there is none
    check     that it was switched
    needs     the fact that there is nothing to switch without; empty: it is not known beforehand
    guess     by which log ratio a step's time moves, roughly: to order arms with that nobody measured
    measured  where the guess comes from
    """

    code: str
    title: str
    what: str
    settings: tuple[str, ...]
    stacks: tuple[str, ...]
    check: Check
    guess: float
    measured: str
    regions: tuple[str, ...] = ("forward", "gradient", "train-step")
    environments: Mapping[str, str] = field(default_factory=dict)
    needs: str = ""


STACK = "STACK"
_TRAIN = ("train-step",)
_XLA = ("jax", "jax-scan")
_COMPILED_BY_XLA = (*_XLA, "detente")
_OF_TORCH = ("torch-eager", "torch-eager-default", "torch-compile", "torch-compile-model")

FACTORS: dict[str, Factor] = {
    f.code: f
    for f in (
        Factor(
            "program",
            "the program",
            "the stack's runtime compiles and runs the program that another stack handed to its own compiler; with the "
            "stack's own name it is the control, the same program through the same door",
            (STACK,),
            ("jax", "jax-scan"),
            Check("work", "operations that the compiler was given", "be that stack's", lambda a, b: a == b),
            0.05,
            "a GPT's step by torch_xla and by JAX on one runtime: 1916 and 1910 us",
            _TRAIN,
        ),
        Factor(
            "tracing",
            "tracing the step in Python",
            "the step is traced three times, and from then on its program is dispatched as one operation: module, "
            "autograd and the optimizer's loop do not run again",
            ("off",),
            ("torch-xla",),
            Check(
                "traced",
                "number of operations that a step traces",
                "fall to a third",
                lambda a, b: 3 * b <= a,
            ),
            0.5,
            "a GPT's step of two layers: 29.2 ms traced, 2.46 without",
            _TRAIN,
        ),
        Factor(
            "compiler",
            "the compiler's version",
            "another release of JAX compiles and runs the step, from an environment of its own: XLA with its executor, "
            "and what dispatches to it. 0.7.1 (August 2025) is the release that torch_xla 2.9.0 names in its own "
            "metadata as the one it goes with",
            ("0.7.1",),
            _XLA,
            Check(
                "compiler",
                "release of jaxlib",
                "be another one",
                lambda a, b: a != b,
                # A model that another release writes down otherwise is another program.
                keeps=("work", "operations that the compiler was given"),
            ),
            0.05,
            "a guess",
            environments={"0.7.1": "jax-0.7.1"},
        ),
        Factor(
            "fusion",
            "fusion",
            "XLA's pass `fusion` does not run: every operation is a kernel of its own and writes its result to memory",
            ("off",),
            _COMPILED_BY_XLA,
            Check("kernels", "number of kernels", "grow by a twentieth", lambda a, b: b >= _MORE * a),
            0.79,
            "a GPT's step: 1910 us with it, 4217 without",
        ),
        Factor(
            "library-kernels",
            "library kernels",
            "XLA's passes `dot-library-rewriter` and `library-rewriter` do not run: products are XLA's own code",
            ("off",),
            _COMPILED_BY_XLA,
            Check("products", "number of products outside of libraries", "grow", lambda a, b: b > a),
            0.1,
            "no clear change of a GPT's step on a CPU",
        ),
        Factor(
            "torch-kernels",
            "PyTorch's products and the bridge's own loops, or XLA's code",
            "the bridge brings no kernels (`DETENTE_KERNELS=0`): products, attention, depthwise convolutions and the "
            "update are XLA's own code, where PyTorch's BLAS and loops in C are called otherwise",
            ("off",),
            ("detente",),
            Check(
                "bridge_calls",
                "number of kernels that the bridge brings",
                "go from some to none",
                lambda a, b: a > 0 and b == 0,
            ),
            0.3,
            "a guess: XLA's products of fp32 run at two thirds of PyTorch's on an Intel Xeon",
            _TRAIN,
        ),
        Factor(
            "donation",
            "donation",
            "the step takes over none of its arguments: parameters and optimizer state are written to new memory",
            ("off",),
            _XLA,
            Check(
                "alias_bytes",
                "bytes that results take over",
                "go from some to none",
                lambda a, b: a > 0 and b == 0,
            ),
            0.03,
            "a GPT's step: 1088 us with it, 1037 without",
        ),
        Factor(
            "optimizer",
            "optimizer in the program",
            "loss and gradients are one executable and the update is another: gradients go through memory",
            ("outside",),
            _XLA,
            Check("executables", "number of executables of a step", "grow", lambda a, b: b > a),
            0.05,
            "a guess: gradients are written and read once more",
            _TRAIN,
        ),
        Factor(
            "attention",
            "the attention kernel",
            "`scaled_dot_product_attention` is left its decomposed form alone (`SDPBackend.MATH`): two products and a "
            "softmax, with the scores written to memory",
            ("decomposed",),
            _OF_TORCH,
            Check(
                "attention_calls",
                "number of attentions that are one kernel",
                "go from some to none",
                lambda a, b: a > 0 and b == 0,
            ),
            0.1,
            "a guess",
            needs="attention_calls",
        ),
        Factor(
            "layout",
            "layout of images",
            "images and the weights of their convolutions have their channels innermost in memory "
            "(`memory_format=torch.channels_last`)",
            ("channels-last",),
            _OF_TORCH,
            Check(
                "channels_last",
                "number of convolutions with channels last",
                "grow",
                lambda a, b: b > a,
            ),
            0.2,
            "ConvNeXt compiled, Zen 3, two pairs: 859 and 830 ms without it, 539 and 717 with",
            needs="convolutions",
        ),
        Factor(
            "loop",
            "loop over layers",
            "repeated layers run in one loop (`scan`), or are written out one by one (`unrolled`)",
            ("scan", "unrolled"),
            _XLA,
            Check("loops", "number of loops", "be another one", lambda a, b: a != b),
            0.1,
            "a guess",
        ),
    )
}


def find_factor(code: str) -> Factor:
    """The factor of that code. Raises UsageFault with the nearest code when there is none."""
    if code in FACTORS:
        return FACTORS[code]
    raise UsageFault(
        f"no factor is called {code!r}" + did_you_mean(code, FACTORS),
        f"there are {', '.join(FACTORS)}",
    )


def check_settings(arm: Arm) -> None:
    """Raises UsageFault for a factor or a setting that there is not."""
    for code, setting in arm.settings:
        factor = find_factor(code)
        if STACK not in factor.settings and setting not in factor.settings:
            raise UsageFault(
                f"{code} cannot be {setting!r}",
                f"{code} can be {' or '.join(factor.settings)}: {factor.what}",
            )


Row = tuple[str, Arm]


def environment_of(environment: str, arm: Arm) -> str:
    """The environment that runs a row: ``environment``, the stack's own, unless a setting of the arm is another one's.

    >>> from detente.records.arm import arm_of
    >>> environment_of("default", arm_of({"compiler": "0.7.1", "donation": "off"}))
    'jax-0.7.1'
    """
    found = (FACTORS[code].environments.get(s) for code, s in arm.settings if code in FACTORS)
    return next(filter(None, found), environment)


def bases_of(stack: str, arm: Arm) -> dict[str, Row]:
    """Factor -> the stack and the arm that its check compares with: the same without the factor, and of a program the
    stack that it is taken from.

    >>> from detente.records.arm import arm_of
    >>> [(code, base.name) for code, (_, base) in bases_of("jax", arm_of({"donation": "off", "fusion": "off"})).items()]
    [('donation', 'fusion=off'), ('fusion', 'donation=off')]
    """
    return {
        code: (setting, NO_ARM)
        if code == "program"
        else (stack, arm.only(f for f in arm.factors if f != code))
        for code, setting in arm.settings
    }


def failed_checks(stack: str, arm: Arm, facts: Mapping[Row, Facts]) -> tuple[str, ...]:
    """What an arm claims to change and did not, a line for each factor; empty where every check holds. ``facts`` are
    those of the row itself and of every row in ``bases_of``. Of a factor that this version does not know (a session of
    a newer one) no check is known either."""
    found = []
    for code, base in bases_of(stack, arm).items():
        if code not in FACTORS:
            found.append(f"{code}={arm.get(code)} is no factor of this version, which cannot check it")
            continue
        why = FACTORS[code].check.failure(facts.get(base, {}), facts.get((stack, arm), {}))
        if why:
            found.append(f"{code}={arm.get(code)} is not what it says: {why}")
    return tuple(found)
