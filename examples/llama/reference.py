#!/usr/bin/env python3
"""What transformers writes on from the same prompts, by greedy choice in fp32: the ids that ropewalk-example-llama is compared with.

  pip install -r ../../tools/golden/requirements.txt
  reference.py ids MODEL PROMPTS >EXPECTED    MODEL: folder of a checkpoint; PROMPTS: a prompt a line, ids between blanks
  reference.py tiny FOLDER                    makes the random checkpoint of the test, its prompts and the ids expected

Standard error tells how close the closest choice was: the least lead of a chosen token over the second, in logits.
"""

import argparse
import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

SEED = 10
LENGTHS = (1, 2, 5, 17, 33, 64, 90, 150)
ENDING = 7
LEAST_LEAD = 0.002  # of the test's model: what fp32 sums in another order change is a hundredth of it


def write_on(model, prompt, new_tokens):
    """The ids that follow, and the least lead."""
    out = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long), pad_token_id=0,
                         max_new_tokens=new_tokens, do_sample=False, return_dict_in_generate=True, output_logits=True)
    leads = [float(top[0] - top[1]) for top in (logits[0].topk(2).values for logits in out.logits)]
    return out.sequences[0, len(prompt):].tolist(), min(leads)


def lines(ids):
    return "".join(" ".join(map(str, row)) + "\n" for row in ids)


def expected(folder, prompts, new_tokens):
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    texts, leads = zip(*(write_on(model, prompt, new_tokens) for prompt in prompts))
    print(f"least lead of a choice: {min(leads):.2g}", file=sys.stderr)
    return texts, min(leads)


def tiny_model():
    config = LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                         head_dim=16, max_position_embeddings=512, tie_word_embeddings=False, bos_token_id=None, eos_token_id=ENDING,
                         rope_parameters={"rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0,
                                          "high_freq_factor": 4.0, "original_max_position_embeddings": 64})
    model = LlamaForCausalLM(config)
    for name, weight in model.named_parameters():
        # Scores of some size, so that the choice depends on what is attended to.
        spread = 0.3 if weight.dim() == 1 else weight.shape[1] ** -0.5 * (2.0 if "q_proj" in name or "k_proj" in name else 1.5)
        weight.data = torch.randn(weight.shape) * spread + (1.0 if weight.dim() == 1 else 0.0)
    return model.to(torch.bfloat16)


def make_tiny(folder):
    torch.manual_seed(SEED)
    folder.mkdir(parents=True, exist_ok=True)
    tiny_model().save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    prompts = [torch.randint(0, 256, (length,)).tolist() for length in LENGTHS]
    texts, lead = expected(folder, prompts, 48)
    if lead < LEAST_LEAD:
        sys.exit("a choice is too close for a test: take another SEED")
    if not 0 < sum(ENDING in text for text in texts) < len(texts):
        sys.exit("either every text ends early or none does: take another SEED or ENDING")
    (folder / "prompts.txt").write_text(lines(prompts))
    (folder / "expected.txt").write_text(lines(texts))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    ids = commands.add_parser("ids")
    ids.add_argument("model", type=Path)
    ids.add_argument("prompts", type=Path)
    ids.add_argument("--new-tokens", type=int, default=48)
    commands.add_parser("tiny").add_argument("folder", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "tiny":
        make_tiny(arguments.folder)
        return
    prompts = [[int(word) for word in line.split()] for line in arguments.prompts.read_text().splitlines()]
    sys.stdout.write(lines(expected(arguments.model, prompts, arguments.new_tokens)[0]))


main()
