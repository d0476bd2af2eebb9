"""What the C header declares: read by check_exports.py and check_abi.py."""

import re


def functions(text):
    """Declarations of exported functions, as (result, name, parameters)."""
    return re.findall(r"^ROPEWALK_API ([\w *]+?)(ropewalk_\w+)\(([^;]*)\);", text, re.MULTILINE)


def enumerations(text):
    """Names of the constants of each enumeration, by the name of its type."""
    bodies = re.findall(r"^typedef int32_t (\w+);\nenum \{(.*?)\};", text, re.MULTILINE | re.DOTALL)
    return {name: re.findall(r"\b(ROPEWALK_\w+) = ", body) for name, body in bodies}
