"""The runs over every sample are asked for by name (``-m ops``); a plain run leaves them out."""

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "ops" in (config.option.markexpr or ""):
        return
    every = [item for item in items if item.get_closest_marker("ops")]
    if every:
        config.hook.pytest_deselected(items=every)
        items[:] = [item for item in items if not item.get_closest_marker("ops")]
