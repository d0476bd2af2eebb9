// Runs the library against golden files.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include <ropewalk/executor.hpp>
#include <ropewalk/status.hpp>
#include "tools/lib/golden/comparison.hpp"
#include "tools/lib/golden/reader.hpp"

namespace ropewalk::toolkit {

enum class verdict { passed, failed, unsupported };

struct check_result {
    std::string kind;
    verdict outcome = verdict::failed;
    double error = 0.0, tolerance = 0.0;  // of the comparison that is closest to its tolerance
    std::string note;                     // which quantity that was, why it is unsupported, or what the library refused
};

// The checks of one file. A status says that the file cannot be read or is no golden file.
result<check_result> check_golden_file(const std::string& path, executor& on);

// What check_golden_file() does with a kind of file. A check compares what it computes; ok means that everything was compared, `unsupported` that
// this version cannot compute it, anything else is a failure of the library. What is wrong with the file goes to the reader.
using check_function = status (*)(golden_reader& golden, comparison& checks, executor& on);
struct golden_kind {
    std::string_view name;
    check_function check;
    std::string_view contents;
};
std::span<const golden_kind> golden_kinds();

status check_rope(golden_reader& golden, comparison& checks, executor& on);
status check_alibi_slopes(golden_reader& golden, comparison& checks, executor& on);
status check_alibi_attention(golden_reader& golden, comparison& checks, executor& on);
status check_attention(golden_reader& golden, comparison& checks, executor& on);
status check_attention_chunked(golden_reader& golden, comparison& checks, executor& on);
status check_attention_ragged(golden_reader& golden, comparison& checks, executor& on);
status check_attention_mask(golden_reader& golden, comparison& checks, executor& on);
status check_attention_bias(golden_reader& golden, comparison& checks, executor& on);
status check_t5_attention(golden_reader& golden, comparison& checks, executor& on);
status check_attention_mla(golden_reader& golden, comparison& checks, executor& on);
status check_deberta_attention(golden_reader& golden, comparison& checks, executor& on);
status check_xlnet_attention(golden_reader& golden, comparison& checks, executor& on);
status check_learned(golden_reader& golden, comparison& checks, executor& on);
status check_sinusoidal(golden_reader& golden, comparison& checks, executor& on);
status check_sinusoidal_shift(golden_reader& golden, comparison& checks, executor& on);
status check_xlnet_pos_enc(golden_reader& golden, comparison& checks, executor& on);
status check_t5_buckets(golden_reader& golden, comparison& checks, executor& on);
status check_deberta_buckets(golden_reader& golden, comparison& checks, executor& on);
status check_trace(golden_reader& golden, comparison& checks, executor& on);

// Largest absolute errors that an fp32 kernel may show against the fp64 truth on unit-variance inputs, from tests/golden/README.md: three to five
// times what the published fp32 implementations show.
struct attention_tolerance {
    static constexpr double plain = 5e-6;
    static constexpr double disentangled = 1e-5;
    static constexpr double softcap = 2e-5;       // the cap multiplies the rounding of tanh by 50
    static constexpr double large_logits = 1e-4;  // an fp32 score near 100 has an ulp of 7.6e-6
    static constexpr double large_lse = 50.0;     // from where on logits count as large
};

}  // namespace ropewalk::toolkit
