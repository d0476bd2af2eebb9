// ropewalk-info: what was compiled, what this host has, and which kernel each operation uses; or, with --config, what a model does with positions.
#include <ropewalk/executor.hpp>
#include "tools/lib/info.hpp"

int main(int argc, char** argv) {
    return ropewalk::toolkit::info_main(argc, argv, ROPEWALK_WITH_TBB ? "oneTBB" : "serial", ropewalk::default_executor().concurrency());
}
