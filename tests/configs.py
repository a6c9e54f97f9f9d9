"""Every preset, and every variant of the presets that it is made for."""

from transformer import PRESETS, Config, variant
from transformer.systems.presets import VARIANT_GROUPS

TRANSFORMERS = ("tiny", "quickstart")
MADE_FOR = {
    "attention and layers": ("tiny",),
    "training methods": ("tiny",),
    "Table 3 of the paper, of the preset base": ("base",),
    "recurrent": ("tiny-recurrent",),
    "AT and FAT": ("tiny",),
    "non-autoregressive": TRANSFORMERS,
}
"""By group of variants."""
COPYING = {
    "copynet": ("dialogue-en", "dialogue-zh"),
    "plain": ("dialogue-en", "dialogue-zh", "sorting", "convex-hull"),
    "copying": ("summarisation",),
}
VARIED: dict[str, Config] = {
    f"{preset} --variant {name}": variant(PRESETS[preset], name)
    for group, names in VARIANT_GROUPS.items()
    for name in names
    for preset in (COPYING[name] if group == "copying" else MADE_FOR[group])
}
CONFIGS: dict[str, Config] = PRESETS | VARIED
"""By the words of the command line."""
