"""The encoder with BERT's head (Devlin et al. 2019)."""

from jaxtyping import Array, Float, Int

from transformer.model.encoder import TransformerEncoder
from transformer.model.layers import ACTIVATIONS, Affine
from transformer.model.normalization import normalization
from transformer.systems.masked_language_model.options import MaskedLanguageModelConfig


class MaskedLanguageModel(TransformerEncoder):
    """Predicts the token at every position, from tokens of which some are hidden."""

    config: MaskedLanguageModelConfig

    def setup(self) -> None:
        super().setup()
        self.head = Affine(self.config.d_model, ("hidden", "model"))
        self.head_norm = normalization(self.config)

    def __call__(  # type: ignore[override]
        self, source: Int[Array, "b s"], *, deterministic: bool = True
    ) -> Float[Array, "b s v"]:
        """Logits at every position."""
        return self.output(self.hidden(source, deterministic=deterministic))

    def hidden(  # type: ignore[override]
        self, source: Int[Array, "b s"], *, deterministic: bool = True
    ) -> Float[Array, "b s m"]:
        """The head's states, the input of `output`."""
        memory = self.encode(source, deterministic=deterministic)
        x = ACTIVATIONS[self.config.activation](self.head(memory.states))
        return self.head_norm(x, memory.mask, deterministic)
