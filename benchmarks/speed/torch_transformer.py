"""The same Transformer in idiomatic PyTorch: fused projections of queries, keys and values,
`scaled_dot_product_attention`, and masks only for packed rows."""

import math
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Multi-head attention; queries, keys and values of the same input are projected at once."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.heads = num_heads
        self.inputs = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)

    def forward(
        self,
        x: torch.Tensor,
        mask: torch.Tensor | None,
        memory: torch.Tensor | None = None,
        causal: bool = False,
    ) -> torch.Tensor:
        if memory is None:
            query, key, value = self.inputs(x).chunk(3, dim=-1)
        else:
            width = x.shape[-1]
            query = F.linear(x, self.inputs.weight[:width])
            key, value = F.linear(memory, self.inputs.weight[width:]).chunk(2, dim=-1)
        query, key, value = (
            y.view(*y.shape[:2], self.heads, -1).transpose(1, 2) for y in (query, key, value)
        )
        if mask is not None and causal:
            mask, causal = mask.tril(), False
        found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal)
        return self.out(found.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """An encoder layer, or with `cross` a decoder layer: post-norm, dropout on each sublayer."""

    def __init__(self, case: Any, cross: bool) -> None:
        super().__init__()
        self.attention = nn.ModuleList(Attention(case.d_model, case.num_heads) for _ in range(1 + cross))
        self.inner, self.outer = nn.Linear(case.d_model, case.d_ff), nn.Linear(case.d_ff, case.d_model)
        self.norms = nn.ModuleList(nn.LayerNorm(case.d_model, eps=1e-6) for _ in range(2 + cross))
        self.dropout = nn.Dropout(case.dropout)

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None, memory: torch.Tensor | None = None
    ) -> torch.Tensor:
        x = self.norms[0](x + self.dropout(self.attention[0](x, mask, causal=memory is not None)))
        if memory is not None:
            x = self.norms[1](x + self.dropout(self.attention[1](x, mask, memory)))
        return self.norms[-1](x + self.dropout(self.outer(F.relu(self.inner(x)))))


class TorchTransformer(nn.Module):
    """Encoder and decoder, with one embedding for source, target and logits."""

    def __init__(self, case: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(case.vocab_size, case.d_model)
        self.encoder = nn.ModuleList(Layer(case, cross=False) for _ in range(case.num_layers))
        self.decoder = nn.ModuleList(Layer(case, cross=True) for _ in range(case.num_layers))
        self.dropout = nn.Dropout(case.dropout)
        rates = 10_000.0 ** (-torch.arange(0, case.d_model, 2) / case.d_model)
        # positions count from 0 in each sentence of a row
        angles = (torch.arange(case.time) % (case.time // case.sentences))[:, None] * rates
        positions = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
        self.register_buffer("positions", positions)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Embeddings with positions."""
        vectors = self.embedding(ids) * math.sqrt(self.embedding.embedding_dim)
        return self.dropout(vectors + self.positions[: ids.shape[1]])

    def forward(
        self, source: torch.Tensor, target: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        memory = self.embed(source)
        for layer in self.encoder:
            memory = layer(memory, mask)
        x = self.embed(target)
        for layer in self.decoder:
            x = layer(x, mask, memory)
        return F.linear(x, self.embedding.weight)

    @torch.no_grad()
    def take(self, params: Any) -> None:
        """Copies the parameters of `transformer.Transformer`."""
        self.embedding.weight.copy_(torch.from_numpy(params["source_embedding"]["table"]))
        for name, stack in (("encoder", self.encoder), ("decoder", self.decoder)):
            for index, layer in enumerate(stack):
                given = params[f"{name}_{index}"]
                kinds = ("self_attention", "cross_attention")[: len(layer.attention)]
                for kind, attention in zip(kinds, layer.attention, strict=True):
                    parts = [_matrix(given[kind][part], 1) for part in ("query", "key", "value")]
                    attention.inputs.weight.copy_(torch.from_numpy(np.concatenate(parts)))
                    attention.out.weight.copy_(torch.from_numpy(_matrix(given[kind]["out"], 2)))
                for part in ("inner", "outer"):
                    linear = getattr(layer, part)
                    linear.weight.copy_(torch.from_numpy(given["feed_forward"][part]["kernel"].T.copy()))
                    linear.bias.copy_(torch.from_numpy(given["feed_forward"][part]["bias"]))
                residuals = ("self_residual", "cross_residual", "feed_forward_residual")
                for kind, norm in zip([r for r in residuals if r in given], layer.norms, strict=True):
                    norm.weight.copy_(torch.from_numpy(given[kind]["norm"]["norm"]["scale"]))
                    norm.bias.copy_(torch.from_numpy(given[kind]["norm"]["norm"]["bias"]))


def _matrix(kernel: np.ndarray, inputs: int) -> np.ndarray:
    """A projection as PyTorch stores it, [out, in]; its first `inputs` axes are the input."""
    return kernel.reshape(int(np.prod(kernel.shape[:inputs])), -1).T
