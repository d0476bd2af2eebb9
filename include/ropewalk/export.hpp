// Symbol visibility of the public API. The library is built with hidden visibility; only what carries ROPEWALK_API leaves it.
#pragma once

#if defined(ROPEWALK_STATIC)
#define ROPEWALK_API
#else
#define ROPEWALK_API __attribute__((visibility("default")))  // before every declaration of the API
#endif
