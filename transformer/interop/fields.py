"""The types of fields in the JSON files of a folder, as far as an import reads them: a value of another type
is refused by name, instead of being ignored or taken for something else."""

from pathlib import Path

from transformer.runtime.errors import UserError
from transformer.runtime.files import Json, brief_json

_FILES = ("config.json", "generation_config.json", "preprocessor_config.json", "tokenizer_config.json")
_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "true or false": (
        (bool,),
        "add_prefix_space add_source_bos add_source_eos bias clean_up_tokenization_spaces do_lower_case "
        "do_sample is_decoder is_multilingual legacy_behaviour norm_first renormalize_logits "
        "scale_decoder_outputs scale_embedding share_encoder_decoder_embeddings source_begins_with_bos "
        "source_end strip_accents tie_word_embeddings tokenize_chinese_chars",
    ),
    "a whole number": (
        (int,),
        "bos_token_id d_ff d_kv d_model decoder_attention_heads decoder_ffn_dim decoder_layers "
        "decoder_start_token_id decoder_vocab_size dim_feedforward encoder_attention_heads "
        "encoder_ffn_dim encoder_layers feature_size forced_bos_token_id hidden_size hop_length "
        "intermediate_size max_position_embeddings max_source_positions max_target_positions n_fft nhead "
        "num_attention_heads num_decoder_layers num_encoder_layers num_heads num_hidden_layers num_layers "
        "num_mel_bins pad_token_id relative_attention_max_distance relative_attention_num_buckets "
        "sampling_rate target_vocab_size type_vocab_size unk_token_id vocab_size",
    ),
    "a number": (
        (int, float),
        "activation_dropout attention_dropout attention_probs_dropout_prob dropout dropout_rate "
        "hidden_dropout_prob layer_norm_eps layer_norm_epsilon",
    ),
    "a text": (
        (str,),
        "activation activation_function decoder_start_token feed_forward_proj hidden_act language_codes "
        "model_type position_embedding_type source_lang target_lang tokenizer_class",
    ),
    "a text or an object": ((str, dict), "bos_token cls_token eos_token unk_token"),
    "a whole number or a list": ((int, list), "eos_token_id forced_eos_token_id"),
    "a list": (
        (list,),
        "bad_words_ids begin_suppress_tokens suppress_ids suppress_ids_begin suppress_tokens",
    ),
    "a list or an object": ((list, dict), "additional_special_tokens extra_special_tokens"),
    "an object": ((dict,), "quantization_config tensors"),
}
"""What a field has to be: its types in Python, and the names of fields."""
_BY_NAME = {name: (types, words) for words, (types, names) in _TYPES.items() for name in names.split()}


def check_fields(path: Path, content: Json) -> None:
    """Raises UserError if a field in a JSON file of a folder has another type than an import reads. Null is
    always valid, and a file of words is not read."""
    if path.name not in _FILES:
        return
    for name in content.keys() & _BY_NAME.keys():
        (types, words), value = _BY_NAME[name], content[name]
        is_switch = isinstance(value, bool) and bool not in types
        if value is not None and (is_switch or not isinstance(value, types)):
            raise UserError(f"{path}: {name} is {brief_json(value)}, not {words}")
