"""Options of all tests."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the expected texts anew; read the diff before you commit it",
    )
    parser.addoption(
        "--update-controls",
        action="store_true",
        help="write the table of negative controls into the documentation (tests/soak)",
    )


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))
