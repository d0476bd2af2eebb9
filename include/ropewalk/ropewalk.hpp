// Everything of ropewalk but the TBB arena adapter (tbb.hpp).
#pragma once

#include <ropewalk/alibi.hpp>
#include <ropewalk/attention.hpp>
#include <ropewalk/executor.hpp>
#include <ropewalk/isa.hpp>
#include <ropewalk/kv_cache.hpp>
#include <ropewalk/kv_pages.hpp>
#include <ropewalk/position_spec.hpp>
#include <ropewalk/rope.hpp>
#include <ropewalk/rope_cache.hpp>
#include <ropewalk/status.hpp>
#include <ropewalk/types.hpp>
#include <ropewalk/version.hpp>
