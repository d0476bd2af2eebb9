"""The peers by name. Each module has a class Peer(threads) that is an Implementation."""
NAMES = {
    "torch-sdpa": "torch_sdpa",
    "torch-flex": "torch_flex",
    "vllm": "vllm_cpu",
    "onnxruntime": "onnxruntime_gqa",
    "openvino": "openvino_pa",
    "ggml": "ggml_flash",
    "pace": "pace_slab",
    "sglang": "sglang_cpu",
}
