"""check_includes.py ROOT: includes go one way, include <- simd <- runtime <- tools (<- tests, bench), and ISA headers stay where they belong."""

import pathlib
import re
import sys

STD = set(
    """algorithm any array atomic barrier bit bitset cassert cctype cerrno cfenv cfloat charconv chrono cinttypes climits cmath compare complex
    concepts condition_variable coroutine csetjmp csignal cstdarg cstddef cstdint cstdio cstdlib cstring ctime cuchar cwchar cwctype deque
    exception execution filesystem format forward_list fstream functional future initializer_list iomanip ios iosfwd iostream istream iterator
    latch limits list locale map memory memory_resource mutex new numbers numeric optional ostream queue random ranges ratio regex
    scoped_allocator semaphore set shared_mutex source_location span sstream stack stdexcept stop_token streambuf string string_view
    syncstream system_error thread tuple type_traits typeindex typeinfo unordered_map unordered_set utility valarray variant vector version
    stdbool.h stddef.h stdint.h string.h""".split()
)
INTRINSICS = re.compile(r"^(\w*intrin\.h|arm_neon\.h|arm_sve\.h|arm_bf16\.h|cpuid\.h)$")
XSIMD = re.compile(r"^xsimd/")
TBB = re.compile(r"^(tbb|oneapi)/")
# What a kernel may include besides simd/ and ropewalk/: nothing with an inline function that the linker could pick for the baseline.
KERNEL_STD = {"cstddef", "cstdint", "cstring", "type_traits"}
KERNEL = re.compile(r"(\.kernel\.hpp|_kernels\.cpp)$")
LAYERS = ["ropewalk", "simd", "runtime", "tools"]
FOLDERS = ["include", "simd", "runtime", "tools", "tests", "bench"]

# The adapter for an arena of the application: header only, and never included by another header. It tells the thread sanitizer what it cannot
# see inside libtbb.
TBB_ADAPTER = "include/ropewalk/tbb.hpp"
XSIMD_VERSION_FILE = "simd/core/xsimd_compat.hpp"


def layer_of_include(name):
    head = name.split("/")[0]
    return head if "/" in name and head in LAYERS + ["tests", "bench", "include"] else None


def complaint(path, name):
    """Why file `path` (relative to the root) may not include `name`, or None."""
    folder = path.split("/")[0]
    layer = layer_of_include(name)
    if KERNEL.search(path):
        if name not in KERNEL_STD and layer not in ("simd", "ropewalk"):
            return "kernels include only " + ", ".join(f"<{h}>" for h in sorted(KERNEL_STD)) + ", simd/ and ropewalk/"
    if layer == "include":
        return "public headers are included as <ropewalk/...>"
    if folder == "include":
        if name == "ropewalk/tbb.hpp" or (TBB.match(name) and path != TBB_ADAPTER):
            return "only the adapter ropewalk/tbb.hpp knows TBB, and no header includes it"
        if layer != "ropewalk" and name not in STD and not TBB.match(name) and not (name == "sanitizer/tsan_interface.h" and path == TBB_ADAPTER):
            return "public headers include only std and <ropewalk/...>"
    if folder in ("include", "simd", "runtime", "tools") and layer:
        order = ["ropewalk", "simd", "runtime", "tools"]
        mine = order.index("ropewalk" if folder == "include" else folder)
        if layer not in order or order.index(layer) > mine:
            return f"includes go one way: include <- simd <- runtime <- tools; {folder}/ may not include {layer}/"
    if folder == "simd" and TBB.match(name):
        return "simd/ has no threads: no TBB"
    if folder in ("runtime", "tools", "tests", "bench") and XSIMD.match(name):
        return "xsimd is for simd/ only"
    if folder in ("include", "runtime", "tools", "tests", "bench") and INTRINSICS.match(name):
        return "intrinsics are for simd/core only"
    if folder == "simd" and not path.startswith("simd/core/") and (INTRINSICS.match(name) or XSIMD.match(name)):
        return "intrinsics and xsimd come through a header of simd/core"
    return None


def main(root):
    faults = []
    files = 0
    for folder in FOLDERS:
        for file in sorted((root / folder).rglob("*")):
            if file.suffix not in (".hpp", ".cpp", ".h", ".c", ".inc"):
                continue
            path = file.relative_to(root).as_posix()
            if path.startswith(("tests/packaging/", "tools/cmake/")):
                continue
            files += 1
            for number, line in enumerate(file.read_text().splitlines(), 1):
                match = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
                if match:
                    why = complaint(path, match.group(2))
                    if not why and match.group(1) == '"' and not layer_of_include(match.group(2)) and "/" not in match.group(2):
                        why = "own headers are included by their path from the root"
                    if why:
                        faults.append(f"{path}:{number}: {line.strip()}: {why}")
                if "XSIMD_VERSION" in line and path != XSIMD_VERSION_FILE:
                    faults.append(f"{path}:{number}: only {XSIMD_VERSION_FILE} looks at the version of xsimd")
    for fault in faults:
        print(fault)
    print(f"{files} files, {len(faults)} faults")
    return 1 if faults or files == 0 else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
