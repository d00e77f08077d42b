"""Writing exports, which needs torch; running them does not."""

from keepad.engines.export.cached import exported
from keepad.engines.export.verify import Difference, verify
from keepad.engines.export.writing import PRECISIONS, check_request, export

__all__ = ["PRECISIONS", "Difference", "check_request", "export", "exported", "verify"]
