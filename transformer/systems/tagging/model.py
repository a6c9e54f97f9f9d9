"""The encoder with a linear layer to labels (Devlin et al. 2019, section 5.3)."""

from jaxtyping import Array, Float, Int

from transformer.model.encoder import TransformerEncoder
from transformer.systems.tagging.options import TaggingConfig


class TaggingModel(TransformerEncoder):
    """Predicts a label at every position, from all tokens of a sentence."""

    config: TaggingConfig

    def __call__(  # type: ignore[override]
        self, source: Int[Array, "b s"], *, deterministic: bool = True
    ) -> Float[Array, "b s v"]:
        """Logits of the labels at every position."""
        return self.output(self.hidden(source, deterministic=deterministic))

    def hidden(  # type: ignore[override]
        self, source: Int[Array, "b s"], *, deterministic: bool = True
    ) -> Float[Array, "b s m"]:
        """The encoder's states, the input of `output`."""
        states: Float[Array, "b s m"] = self.encode(source, deterministic=deterministic).states
        return states
