// The version of the headers. `ropewalk::version()` in isa.hpp tells the version of the library that was linked.
#pragma once

#define ROPEWALK_VERSION_MAJOR 0  // interfaces of two majors do not go together
#define ROPEWALK_VERSION_MINOR 1  // nor, while MAJOR is 0, of two minors
#define ROPEWALK_VERSION_PATCH 0  // the interface is the same
