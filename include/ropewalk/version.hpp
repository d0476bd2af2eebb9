// The version of the headers. `ropewalk::version()` in isa.hpp tells the version of the library that was linked.
#pragma once

#define ROPEWALK_VERSION_MAJOR 0
#define ROPEWALK_VERSION_MINOR 1
#define ROPEWALK_VERSION_PATCH 0
