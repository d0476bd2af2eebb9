// Everything of ropewalk but the TBB arena adapter (tbb.hpp).
#pragma once

#include <ropewalk/absolute.hpp>
#include <ropewalk/alibi.hpp>
#include <ropewalk/attention.hpp>
#include <ropewalk/attention_bias.hpp>
#include <ropewalk/executor.hpp>
#include <ropewalk/isa.hpp>
#include <ropewalk/kv_cache.hpp>
#include <ropewalk/kv_pages.hpp>
#include <ropewalk/position_spec.hpp>
#include <ropewalk/query_temperature.hpp>
#include <ropewalk/relative_attention.hpp>
#include <ropewalk/relative_bias.hpp>
#include <ropewalk/relative_buckets.hpp>
#include <ropewalk/rope.hpp>
#include <ropewalk/rope_axes.hpp>
#include <ropewalk/rope_cache.hpp>
#include <ropewalk/status.hpp>
#include <ropewalk/types.hpp>
#include <ropewalk/version.hpp>
