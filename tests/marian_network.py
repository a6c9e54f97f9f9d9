"""Marian's network in NumPy, from the arrays of its file under their own names, and small random files.

Written from Marian's description of its network, one position and one head at a time, and with nothing of the
package.
"""

import struct

import numpy as np

ALIGNMENT = 256
SIZES = {
    "dim-emb": 8,
    "enc-depth": 2,
    "dec-depth": 2,
    "transformer-dim-ffn": 12,
    "transformer-heads": 2,
}
SSRU = {"transformer-decoder-autoreg": "rnn", "dec-cell": "ssru"}
ATTENTION = {"transformer-decoder-autoreg": "self-attention", "dec-cell": "gru"}
POST = {"transformer-preprocess": "", "transformer-postprocess": "dan"}
PRE = {"transformer-preprocess": "n", "transformer-postprocess": "da", "transformer-postprocess-top": "n"}


def description(rows, **options):
    """The options of model.yml."""
    return {
        "type": "transformer",
        "dim-vocabs": [rows, rows],
        "transformer-ffn-activation": "relu",
        "tied-embeddings-all": "true",
        **SIZES,
        **POST,
        **SSRU,
        **options,
    }


def as_yaml(options):
    lines = []
    for name, value in options.items():
        if isinstance(value, list):
            lines += [f"{name}:", *(f"  - {item}" for item in value)]
        else:
            lines.append(f"{name}: {value}" if value != "" else f'{name}: ""')
    return "\n".join(lines) + "\n"


def random_arrays(options, seed=0):
    """Arrays of a network of this description."""
    rng = np.random.default_rng(seed)
    width, inner = options["dim-emb"], options["transformer-dim-ffn"]
    arrays = {}

    def matrix(name, *shape):
        arrays[name] = rng.normal(0, shape[0] ** -0.5, shape).astype(np.float32)

    def bias(name, size):
        arrays[name] = rng.normal(0, 0.1, (1, size)).astype(np.float32)

    def norm(name, suffix=""):
        bias(f"{name}_ln_bias{suffix}", width)
        arrays[f"{name}_ln_scale{suffix}"] = rng.normal(1, 0.1, (1, width)).astype(np.float32)

    suffix = "_pre" if options["transformer-preprocess"] else ""

    def attention(name):
        for letter in "qkvo":
            matrix(f"{name}_W{letter}", width, width)
            bias(f"{name}_b{letter}", width)
        norm(f"{name}_Wo", suffix)

    rows = options["dim-vocabs"]
    if options["tied-embeddings-all"] == "true":
        arrays["Wemb"] = rng.normal(0, 0.7, (rows[0], width)).astype(np.float32)
    else:
        arrays["encoder_Wemb"] = rng.normal(0, 0.7, (rows[0], width)).astype(np.float32)
        arrays["decoder_Wemb"] = rng.normal(0, 0.7, (rows[1], width)).astype(np.float32)
        arrays["decoder_ff_logit_out_Wt"] = rng.normal(0, 0.7, (rows[1], width)).astype(np.float32)
    bias("decoder_ff_logit_out_b", rows[1])
    for side in ("encoder", "decoder"):
        for number in range(1, options[f"{side[:3]}-depth"] + 1):
            layer = f"{side}_l{number}"
            if side == "decoder" and options["transformer-decoder-autoreg"] == "rnn":
                matrix(f"{layer}_rnn_W", width, width)
                matrix(f"{layer}_rnn_Wf", width, width)
                bias(f"{layer}_rnn_bf", width)
                norm(f"{layer}_rnn" if suffix else f"{layer}_rnn_ffn", suffix)
            else:
                attention(f"{layer}_self")
            if side == "decoder":
                attention(f"{layer}_context")
            matrix(f"{layer}_ffn_W1", width, inner)
            bias(f"{layer}_ffn_b1", inner)
            matrix(f"{layer}_ffn_W2", inner, width)
            bias(f"{layer}_ffn_b2", width)
            norm(f"{layer}_ffn_ffn", suffix)
        if options.get("transformer-postprocess-top"):
            norm(f"{side}_top")
        if "n" in options.get("transformer-postprocess-emb", ""):
            norm(f"{side}_emb", "_pre")
    return arrays


def write_npz(path, arrays, options):
    text = as_yaml(options).encode() + b"\0"
    np.savez(path, **arrays, **{"special:model.yml": np.frombuffer(text, np.int8)})


def write_bin(path, arrays, options, integers=False):
    """A `.bin` file; with `integers` matrices are intgemm8."""
    items = []
    for name, x in arrays.items():
        if integers and x.shape[0] > 1:
            multiplier = np.float32(127 / np.abs(x).max())
            values = np.rint(x * multiplier).astype(np.int8)
            values = values if "Wemb" in name or name.endswith("_Wt") else values.T
            items.append((name, 0x4101, x.shape, values.tobytes() + multiplier.tobytes()))
            items.append((f"{name}_QuantMultA", 0x404, (1, 1), np.float32(3).tobytes()))
        else:
            items.append((name, 0x404, x.shape, x.tobytes()))
    text = as_yaml(options).encode() + b"\0"
    items.append(("special:model.yml", 0x101, (len(text),), text))
    sizes = [len(content) + -len(content) % ALIGNMENT for *_, content in items[:-1]] + [len(text)]
    content = struct.pack("<QQ", 1, len(items))
    for (name, kind, shape, _), size in zip(items, sizes, strict=True):
        content += struct.pack("<QQQQ", len(name) + 1, kind, len(shape), size)
    content += b"".join(name.encode() + b"\0" for name, *_ in items)
    content += b"".join(struct.pack(f"<{len(shape)}i", *shape) for _, _, shape, _ in items)
    padding = -(len(content) + 8) % ALIGNMENT
    content += struct.pack("<Q", padding) + bytes(padding)
    content += b"".join(data.ljust(size, b"\0") for (*_, data), size in zip(items, sizes, strict=True))
    path.write_bytes(content)


def logits(arrays, options, source, target):
    """Logits of every next token: `target` without the end. Decoding starts with a zero vector."""
    width, heads = options["dim-emb"], options["transformer-heads"]
    is_pre = options["transformer-preprocess"] == "n"
    suffix = "_pre" if is_pre else ""
    activation = {"relu": lambda x: np.maximum(x, 0), "swish": lambda x: x / (1 + np.exp(-x))}

    def normalised(x, name, suffix=""):
        mean, deviation = x.mean(-1, keepdims=True), np.sqrt(x.var(-1, keepdims=True) + 1e-6)
        return (x - mean) / deviation * arrays[f"{name}_ln_scale{suffix}"] + arrays[f"{name}_ln_bias{suffix}"]

    def residual(x, name, sublayer):
        if is_pre:
            return x + sublayer(normalised(x, name, suffix))
        return normalised(x + sublayer(x), name)

    def positioned(x, side):
        number = width // 2
        for position in range(len(x)):
            for i in range(number):
                angle = position * 10_000 ** (-i / (number - 1))
                x[position, i] += np.sin(angle)
                x[position, number + i] += np.cos(angle)
        if "n" in options.get("transformer-postprocess-emb", ""):
            x = normalised(x, f"{side}_emb", "_pre")
        return x

    def attend(x, memory, name, is_causal):
        query, key, value = (
            states @ arrays[f"{name}_W{letter}"] + arrays[f"{name}_b{letter}"]
            for letter, states in (("q", x), ("k", memory), ("v", memory))
        )
        contexts = np.zeros_like(query)
        depth = width // heads
        for head in range(heads):
            part = slice(head * depth, (head + 1) * depth)
            for t in range(len(x)):
                seen = t + 1 if is_causal else len(memory)
                scores = key[:seen, part] @ query[t, part] / np.sqrt(depth)
                weights = np.exp(scores - scores.max())
                contexts[t, part] = weights / weights.sum() @ value[:seen, part]
        return contexts @ arrays[f"{name}_Wo"] + arrays[f"{name}_bo"]

    def recur(x, name):
        outputs, cell = [], np.zeros(width)
        for vector in x:
            forget = 1 / (1 + np.exp(-(vector @ arrays[f"{name}_Wf"] + arrays[f"{name}_bf"][0])))
            cell = forget * cell + (1 - forget) * (vector @ arrays[f"{name}_W"])
            outputs.append(np.maximum(cell, 0))
        return np.array(outputs)

    def transform(x, name):
        inner = activation[options["transformer-ffn-activation"]](
            x @ arrays[f"{name}_W1"] + arrays[f"{name}_b1"]
        )
        return inner @ arrays[f"{name}_W2"] + arrays[f"{name}_b2"]

    def top(x, side):
        return normalised(x, f"{side}_top") if options.get("transformer-postprocess-top") else x

    embeddings = [arrays.get("Wemb", arrays.get(f"{side}_Wemb")) for side in ("encoder", "decoder")]
    x = positioned(np.sqrt(width) * embeddings[0][source].astype(float), "encoder")
    for number in range(1, options["enc-depth"] + 1):
        layer = f"encoder_l{number}"
        x = residual(x, f"{layer}_self_Wo", lambda x, name=f"{layer}_self": attend(x, x, name, False))
        x = residual(x, f"{layer}_ffn_ffn", lambda x, name=f"{layer}_ffn": transform(x, name))
    memory = top(x, "encoder")
    start = np.zeros((1, width))
    x = positioned(np.concatenate([start, np.sqrt(width) * embeddings[1][target]]), "decoder")
    numbers = options.get("transformer-tied-layers") or range(1, options["dec-depth"] + 1)
    for number in numbers:
        layer = f"decoder_l{number}"
        if options["transformer-decoder-autoreg"] == "rnn":
            name = f"{layer}_rnn" if is_pre else f"{layer}_rnn_ffn"
            x = residual(x, name, lambda x, name=f"{layer}_rnn": recur(x, name))
        else:
            x = residual(x, f"{layer}_self_Wo", lambda x, name=f"{layer}_self": attend(x, x, name, True))
        x = residual(
            x, f"{layer}_context_Wo", lambda x, name=f"{layer}_context": attend(x, memory, name, False)
        )
        x = residual(x, f"{layer}_ffn_ffn", lambda x, name=f"{layer}_ffn": transform(x, name))
    table = arrays.get("Wemb", arrays.get("decoder_ff_logit_out_Wt"))
    return top(x, "decoder") @ table.T + arrays["decoder_ff_logit_out_b"]
