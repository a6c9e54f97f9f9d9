"""Detection."""

from transformer.systems.detection.model import DetectionTransformer
from transformer.systems.detection.objective import detection_objective
from transformer.systems.detection.search import detection_search
from transformer.systems.detection.task import Detection
from transformer.systems.system import System

SYSTEM = System(
    model=DetectionTransformer,
    objective=lambda config, _: detection_objective(config),
    search=detection_search,
    task=Detection,
)
