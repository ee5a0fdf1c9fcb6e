"""What runs always, and what only in the whole matrix. Not in ``runs.py``, which scripts use without pytest."""

from collections.abc import Sequence

import pytest

WHOLE_MATRIX = pytest.mark.whole_matrix


def mostly(name: str, value: object, others: Sequence[object]) -> pytest.MarkDecorator:
    """Parametrise ``name`` with ``value`` always and with ``others``, whose code is the same, in the whole matrix."""
    return pytest.mark.parametrize(name, [value, *(pytest.param(other, marks=WHOLE_MATRIX) for other in others)])
