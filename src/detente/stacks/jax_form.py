"""How a JAX step is built: as the stack has it, or under an arm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from detente.records.arm import Arm
from detente.stacks.form_of_arm import form_of_arm


@dataclass(frozen=True)
class JaxForm:
    """donates   whether the step takes over its arguments
    outside   whether the update is an executable of its own
    scan      layers in ``lax.scan``; None: as the stack has it
    brings    whether the bridge's own kernels are called
    exported  whether the program goes through the door of foreign ones: the control of what that door costs
    disabled  XLA's passes that do not run. XLA takes them by name, and a name that it does not know in silence: the
              factor's check (stacks/factors.py) is what tells
    """

    donates: bool = True
    outside: bool = False
    scan: bool | None = None
    disabled: tuple[str, ...] = ()
    brings: bool = True
    exported: bool = False

    @property
    def options(self) -> dict[str, str]:
        """XLA's, for every executable of the step."""
        return {"xla_disable_hlo_passes": ",".join(self.disabled)} if self.disabled else {}

    def jit(
        self, jax: Any, function: Callable[..., Any], donated: tuple[int, ...]
    ) -> tuple[Any, tuple[int, ...]]:
        """The function, jitted in this form, and the positions that it donates."""
        kept = donated if self.donates else ()
        if self.exported:
            return Exported(jax, function, kept, self.options), kept
        return jax.jit(function, donate_argnums=kept, compiler_options=self.options or None), kept


class Exported:
    """A jitted function that is exported at its first call, and called as what was exported ever after."""

    def __init__(
        self, jax: Any, function: Callable[..., Any], donated: tuple[int, ...], options: dict[str, str]
    ) -> None:
        self.jax, self.function, self.donated, self.options = jax, function, donated, options
        self._jitted: Any = None

    def __call__(self, *arguments: Any) -> Any:
        return self._made(arguments)(*arguments)

    def lower(self, *arguments: Any) -> Any:
        return self._made(arguments).lower(*arguments)

    def _made(self, arguments: tuple[Any, ...]) -> Any:
        if self._jitted is None:
            from jax import export

            shapes = self.jax.tree.map(lambda a: self.jax.ShapeDtypeStruct(a.shape, a.dtype), arguments)
            record = export.export(self.jax.jit(self.function))(*shapes)
            self._jitted = self.jax.jit(
                record.call, donate_argnums=self.donated, compiler_options=self.options or None
            )
        return self._jitted


AS_IT_IS = JaxForm()

Forms = Mapping[tuple[str, str], Callable[[JaxForm], JaxForm]]


def without(*passes: str) -> Callable[[JaxForm], JaxForm]:
    """The form with these of XLA's passes switched off, too."""
    return lambda form: replace(form, disabled=(*form.disabled, *passes))


# What only switches off passes, whoever wrote the program.
PASSES: Forms = {
    ("fusion", "off"): without("fusion"),
    ("library-kernels", "off"): without("dot-library-rewriter", "library-rewriter"),
}
OF_THE_BRIDGE: Forms = {
    **PASSES,
    ("torch-kernels", "off"): lambda form: replace(form, brings=False),
}
FORMS: Forms = {
    **PASSES,
    ("donation", "off"): lambda form: replace(form, donates=False),
    ("loop", "scan"): lambda form: replace(form, scan=True),
    ("loop", "unrolled"): lambda form: replace(form, scan=False),
    ("optimizer", "outside"): lambda form: replace(form, outside=True),
    # The interpreter that the worker runs in makes it so.
    ("compiler", "0.7.1"): lambda form: form,
}


def form_of(stack: str, arm: Arm, forms: Forms = FORMS) -> JaxForm:
    """The form of an arm. Raises Unavailable for a factor or a setting that this stack cannot be built under."""
    return form_of_arm(stack, arm, forms, AS_IT_IS)
