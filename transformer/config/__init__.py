"""Configuration: options, presets, their JSON, and the types of every system. Imports nothing above."""

from transformer.config.options import (
    COUNTS as COUNTS,
)
from transformer.config.options import (
    LONGEST as LONGEST,
)
from transformer.config.options import (
    Config as Config,
)
from transformer.config.options import (
    DataConfig as DataConfig,
)
from transformer.config.options import (
    DecodingConfig as DecodingConfig,
)
from transformer.config.options import (
    HostsConfig as HostsConfig,
)
from transformer.config.options import (
    MeshConfig as MeshConfig,
)
from transformer.config.options import (
    ModelConfig as ModelConfig,
)
from transformer.config.options import (
    OptimizerConfig as OptimizerConfig,
)
from transformer.config.options import (
    Ranges as Ranges,
)
from transformer.config.options import (
    SpecialIds as SpecialIds,
)
from transformer.config.options import (
    TrainingConfig as TrainingConfig,
)
from transformer.config.options import (
    TransformerConfig as TransformerConfig,
)
from transformer.config.options import (
    changed as changed,
)
from transformer.config.options import (
    check_beam as check_beam,
)
from transformer.config.options import (
    differences as differences,
)
from transformer.config.options import (
    flatten as flatten,
)
