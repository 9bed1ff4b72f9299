#!/usr/bin/env python3
"""Makes a tiny chat model of random weights, the same one for every engine.

    tiny_model.py FOLDER [--wide]   config, tokenizer and weights in FOLDER, for vLLM and SGLang;
                                    FOLDER/tiny.gguf for llama.cpp
    tiny_model.py FOLDER --tokenizer
                                    what a client needs to count tokens, and no weights

--wide makes one whose prefill takes seconds, of a shape in which attention's part of it is as on a
GPU: many columns, few and narrow heads (16,384 tokens: 8 to 12 s of one core).

Nothing is fetched: the tokenizer is trained here, on the texts of Python's own help. Its words are
noise, but of a useful kind: a greedy answer (temperature 0) never ends early, is printable ASCII,
and is the same on every engine, so a test knows how long an answer must be and sees mixed-up text.
Needs tokenizers; for weights numpy, safetensors and gguf, too. Same Python, same bytes.
"""
import json
import os
import pydoc_data.topics
import shutil
import sys
import tempfile
import typing

SEED = 1
VOCABULARY = 2048
NORM_EPSILON, ROPE_BASE = 1e-6, 1e6
END_OF_TEXT, TURN, END_OF_TURN = SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# Engines cut words as Qwen2 does, whatever the tokenizer's file says; so it is trained that way.
WORDS = "|".join((
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"[^\r\n\p{L}\p{N}]?\p{L}+", r"\p{N}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"))
# A turn's prompt is a prefix of the next turn's, and tools come first; before them what only the
# template's own arguments can bring in.
TEMPLATE = """\
{%- if preface %}{{ preface }}
{% endif %}
{%- if tools %}<|im_start|>system
Tools:
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message['role'] }}
{{ message['content'] or '' }}
{%- if message.get('tool_calls') %}{{ message['tool_calls'] | tojson }}{% endif %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


class Shape(typing.NamedTuple):
    family: str
    layers: int
    width: int
    heads: int
    key_heads: int
    head_size: int
    inner: int
    context: int

    def matrices(self):
        """Of a layer: name in safetensors, name in GGUF, rows, columns."""
        queries, keys = self.heads * self.head_size, self.key_heads * self.head_size
        return (
            ("self_attn.q_proj.weight", "attn_q.weight", queries, self.width),
            ("self_attn.k_proj.weight", "attn_k.weight", keys, self.width),
            ("self_attn.v_proj.weight", "attn_v.weight", keys, self.width),
            ("self_attn.o_proj.weight", "attn_output.weight", self.width, queries),
            ("mlp.gate_proj.weight", "ffn_gate.weight", self.inner, self.width),
            ("mlp.up_proj.weight", "ffn_up.weight", self.inner, self.width),
            ("mlp.down_proj.weight", "ffn_down.weight", self.width, self.inner),
        )

    def vectors(self):
        """Of a layer: name in safetensors, name in GGUF, length, value."""
        queries, keys = self.heads * self.head_size, self.key_heads * self.head_size
        norms = (("input_layernorm.weight", "attn_norm.weight", self.width, 1),
                 ("post_attention_layernorm.weight", "ffn_norm.weight", self.width, 1))
        if self.family == "qwen3":
            return norms + (("self_attn.q_norm.weight", "attn_q_norm.weight", self.head_size, 1),
                            ("self_attn.k_norm.weight", "attn_k_norm.weight", self.head_size, 1))
        return norms + (("self_attn.q_proj.bias", "attn_q.bias", queries, 0),
                        ("self_attn.k_proj.bias", "attn_k.bias", keys, 0),
                        ("self_attn.v_proj.bias", "attn_v.bias", keys, 0))


TINY = Shape("qwen2", 2, 64, 2, 2, 32, 128, 32768)
WIDE = Shape("qwen3", 2, 512, 2, 1, 32, 2048, 131072)
OUTER = (
    ("model.embed_tokens.weight", "token_embd.weight"),
    ("model.norm.weight", "output_norm.weight"),
    ("lm_head.weight", "output.weight"),
)


def tensor_names(shape):
    """Pairs of names, safetensors' and GGUF's."""
    yield from OUTER
    for layer in range(shape.layers):
        for names in shape.matrices() + shape.vectors():
            yield f"model.layers.{layer}.{names[0]}", f"blk.{layer}.{names[1]}"


def train_tokenizer():
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=list(SPECIALS), show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    texts = pydoc_data.topics.topics
    tokenizer.train_from_iterator((texts[name] for name in sorted(texts)), trainer)
    return tokenizer


def is_plain(tokenizer, token):
    text = tokenizer.decode([token], skip_special_tokens=False)
    return bool(text) and text not in SPECIALS and all(" " <= c <= "~" for c in text)


def draw_weights(shape, tokenizer):
    """Tensors by safetensors' names; what must never be said gets a score of 0."""
    import numpy

    random = numpy.random.default_rng(SEED)
    rows = tokenizer.get_vocab_size()

    def draw(count, columns, scale=None):
        values = random.standard_normal((count, columns))
        return (values * (scale or columns ** -0.5)).astype(numpy.float32)

    weights = {"model.embed_tokens.weight": draw(rows, shape.width, 1.0)}
    for layer in range(shape.layers):
        for name, _, count, columns in shape.matrices():
            weights[f"model.layers.{layer}.{name}"] = draw(count, columns)
        for name, _, length, value in shape.vectors():
            weights[f"model.layers.{layer}.{name}"] = numpy.full(length, value, numpy.float32)
    weights["model.norm.weight"] = numpy.ones(shape.width, numpy.float32)
    head = draw(rows, shape.width, 4 * shape.width ** -0.5)
    for token in range(rows):
        if not is_plain(tokenizer, token):
            head[token] = 0
    weights["lm_head.weight"] = head
    return weights


def configuration(shape, tokenizer):
    return {
        "architectures": [shape.family.capitalize() + "ForCausalLM"], "model_type": shape.family,
        "torch_dtype": "float32",
        "num_hidden_layers": shape.layers, "hidden_size": shape.width,
        "intermediate_size": shape.inner, "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.key_heads, "head_dim": shape.head_size,
        "vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": shape.context,
        "rope_theta": ROPE_BASE, "rms_norm_eps": NORM_EPSILON, "hidden_act": "silu",
        "tie_word_embeddings": False, "use_cache": True, "attention_dropout": 0.0,
        "bos_token_id": None, "eos_token_id": tokenizer.token_to_id(END_OF_TURN),
    }


def write_tokenizer(folder, shape, tokenizer):
    config = configuration(shape, tokenizer)
    files = {
        "config.json": config,
        "generation_config.json": {"eos_token_id": config["eos_token_id"], "pad_token_id": 0},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": shape.context,
            "eos_token": END_OF_TURN, "pad_token": END_OF_TEXT,
            "clean_up_tokenization_spaces": False, "chat_template": TEMPLATE},
    }
    for name, content in files.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
    tokenizer.save(os.path.join(folder, "tokenizer.json"))


def write_weights(folder, weights):
    from safetensors.numpy import save_file

    save_file(weights, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})


def describe_gguf(writer, shape, tokenizer):
    import gguf

    count = tokenizer.get_vocab_size()
    names = [tokenizer.id_to_token(token) for token in range(count)]
    kinds = gguf.TokenType
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    writer.add_name("tiny")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.key_heads)
    writer.add_key_length(shape.head_size)
    writer.add_value_length(shape.head_size)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_layer_norm_rms_eps(NORM_EPSILON)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(names)
    writer.add_token_types([kinds.CONTROL if n in SPECIALS else kinds.NORMAL for n in names])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    writer.add_eos_token_id(tokenizer.token_to_id(END_OF_TURN))
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)


def write_gguf(path, shape, tokenizer, weights):
    import gguf

    writer = gguf.GGUFWriter(path, shape.family)
    describe_gguf(writer, shape, tokenizer)
    for name, gguf_name in tensor_names(shape):
        writer.add_tensor(gguf_name, weights[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main(folder, shape, weighty):
    """Writes beside the place and renames, so that the folder is whole or absent."""
    parent = os.path.dirname(os.path.abspath(folder))
    os.makedirs(parent, exist_ok=True)
    draft = tempfile.mkdtemp(dir=parent)
    os.chmod(draft, 0o755)
    tokenizer = train_tokenizer()
    write_tokenizer(draft, shape, tokenizer)
    if weighty:
        weights = draw_weights(shape, tokenizer)
        write_weights(draft, weights)
        write_gguf(os.path.join(draft, "tiny.gguf"), shape, tokenizer, weights)
    shutil.rmtree(folder, ignore_errors=True)
    os.rename(draft, folder)


if __name__ == "__main__":
    words = sys.argv[1:]
    if not words or words[0].startswith("-") or words[1:] not in ([], ["--wide"], ["--tokenizer"]):
        sys.exit(__doc__)
    main(words[0], WIDE if "--wide" in words else TINY, weighty="--tokenizer" not in words)
