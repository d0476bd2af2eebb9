// The golden files against the library, and golden files that were tampered with.
#include <filesystem>
#include <map>

#include <ropewalk/executor.hpp>

#include "tests/seeded.hpp"
#include "tests/tools/temporary_file.hpp"
#include "tools/lib/golden/check.hpp"

namespace ropewalk::test {
namespace {

using toolkit::check_golden_file;
using toolkit::check_result;
using toolkit::verdict;

const std::filesystem::path golden = ROPEWALK_SOURCE_DIR "/tests/golden";

TEST(golden, every_file_passes) {
    int passed = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(golden)) {
        if (entry.path().extension() != ".safetensors") continue;
        const result<check_result> checked = check_golden_file(entry.path().string(), default_executor());
        ASSERT_TRUE(checked.ok()) << entry.path() << ": " << checked.state().text();
        EXPECT_EQ(checked->outcome, verdict::passed)
            << entry.path() << ": " << checked->note << ", error " << checked->error << " of " << checked->tolerance;
        ++passed;
    }
    EXPECT_EQ(passed, 93);
}

TEST(golden, works_without_threads) {
    serial_executor serial;
    const result<check_result> checked = check_golden_file((golden / "attention/ragged_mixed_d128.safetensors").string(), serial);
    ASSERT_TRUE(checked.ok());
    EXPECT_EQ(checked->outcome, verdict::passed) << checked->note;
}

TEST(golden, other_safetensors_files_are_refused) {
    const temporary_file file(std::string("\2\0\0\0\0\0\0\0{}", 10));
    EXPECT_STREQ(check_golden_file(file.path(), default_executor()).state().text(), "metadata has no kind: this is no golden file");
}

class tampered_golden : public seeded {
protected:
    // A copy of the file with `from` (which must be there) replaced by a text of the same length.
    static std::string replaced(const std::string& name, const std::string& from, const std::string& to) {
        std::string whole = read_file((golden / name).string());
        const size_t at = whole.find(from);
        EXPECT_NE(at, std::string::npos) << from;
        EXPECT_EQ(from.size(), to.size());
        return whole.replace(at, from.size(), to);
    }
    static result<check_result> check(const std::string& contents) {
        const temporary_file file(contents);
        return check_golden_file(file.path(), default_executor());
    }
};

TEST_F(tampered_golden, wrong_values_fail) {
    const result<check_result> scale =
        check(replaced("attention/sliding16_mistral_decode_d64.safetensors", R"(\"scale\": 0.125)", R"(\"scale\": 0.126)"));
    ASSERT_TRUE(scale.ok()) << scale.state().text();
    EXPECT_EQ(scale->outcome, verdict::failed);
    const result<check_result> theta =
        check(replaced("rope/gptneox_partial025_d64.safetensors", R"(\"rope_theta\": 10000.0, \"rope_type\": \"default\", \"rotary_dim\")",
                       R"(\"rope_theta\": 10001.0, \"rope_type\": \"default\", \"rotary_dim\")"));
    ASSERT_TRUE(theta.ok()) << theta.state().text();
    EXPECT_EQ(theta->outcome, verdict::failed);
    EXPECT_GT(theta->error, theta->tolerance);
}

TEST_F(tampered_golden, a_mask_that_is_no_span_is_unsupported) {
    const result<check_result> checked =
        check(replaced("attention/sliding16_mistral_decode_d64.safetensors", R"(\"sliding_window\": 16)", R"(\"sliding_window\": 17)"));
    ASSERT_TRUE(checked.ok()) << checked.state().text();
    EXPECT_EQ(checked->outcome, verdict::unsupported);
    EXPECT_EQ(checked->note, "a mask that is no span of positions");
}

// The file ends with the last row of keep: 20 keys before the tree and 12 nodes, of which it does not see the first.
TEST_F(tampered_golden, a_wrong_tree_is_noticed) {
    const std::string name = "attention/tree_mask_d64.safetensors";
    EXPECT_STREQ(check(replaced(name, R"(\"past\": 20)", R"(\"past\": 21)")).state().text(), "past must be the keys before the query tokens");
    const auto with_last_row = [&](int64_t key, char seen) {
        std::string bent = read_file((golden / name).string());
        bent[bent.size() - 32 + static_cast<std::size_t>(key)] = seen;
        const result<check_result> checked = check(bent);
        return checked.ok() ? checked->outcome : verdict::passed;
    };
    EXPECT_EQ(with_last_row(20, 1), verdict::failed);
    EXPECT_EQ(with_last_row(21, 0), verdict::failed);
    EXPECT_EQ(with_last_row(19, 0), verdict::unsupported);
}

TEST_F(tampered_golden, parameters_of_the_wrong_type_are_named) {
    const std::string name = "attention/sliding16_mistral_decode_d64.safetensors";
    EXPECT_STREQ(check(replaced(name, R"(\"H\": 8)", R"(\"H\":-8)")).state().text(), "params.H is -8; must be 1 to 1048576");
    EXPECT_STREQ(check(replaced(name, R"(\"H\": 8)", R"(\"H\": 9)")).state().text(),
                 "tensor q has shape [1, 8, 1, 64]; must be [-1, 9, -1, 64] (-1: any)");
    EXPECT_STREQ(check(replaced(name, R"(\"causal\": true)", R"(\"causal\": 1234)")).state().text(), "params.causal is 1234; must be true or false");
    EXPECT_STREQ(check(replaced(name, R"(\"scale\": 0.125)", R"(\"scalf\": 0.125)")).state().text(), "params.scale is null; must be a number");
}

TEST_F(tampered_golden, sections_that_do_not_sum_fail) {
    const result<check_result> checked =
        check(replaced("rope/qwen2vl_mrope_16_24_24_d128.safetensors", R"(\"contiguous\", \"mrope_section\": [16, 24, 24])",
                       R"(\"contiguous\", \"mrope_section\": [16, 24, 25])"));
    ASSERT_TRUE(checked.ok()) << checked.state().text();
    EXPECT_EQ(checked->outcome, verdict::failed);
    EXPECT_EQ(checked->note, "sections sum to 65; must be rotary_dim / 2 = 64");
}

TEST_F(tampered_golden, flipped_bytes_never_crash) {
    const std::pair<const char*, int> files[] = {{"attention/sliding16_mistral_decode_d64.safetensors", 120},
                                                 {"attention/ragged_decode_d64.safetensors", 40},
                                                 {"attention/chunked_prefill_window9_d64.safetensors", 20},
                                                 {"rope/gptneox_partial025_d64.safetensors", 120},
                                                 {"rope/yarn32_gptoss_d64.safetensors", 40},
                                                 {"rope/longrope_phi3mini128k_short_d96.safetensors", 40},
                                                 {"alibi/attn_bloom_h8.safetensors", 20},
                                                 {"t5/attn_encoder.safetensors", 30},
                                                 {"attention/custom_bias_d64.safetensors", 20},
                                                 {"xlnet/attn_bi_mems_clamp_seg.safetensors", 60},
                                                 {"deberta/v2_c2p_p2c_b16_m32.safetensors", 60},
                                                 {"learned/opt.safetensors", 40},
                                                 {"sinusoidal/m2m100_d64.safetensors", 40},
                                                 {"xlnet/pos_enc.safetensors", 20},
                                                 {"t5/buckets.safetensors", 20},
                                                 {"attention/mla_dsv3_tiny.safetensors", 20}};
    const temporary_file file;
    std::map<std::string, int> outcomes;
    for (const auto& [name, rounds] : files) {
        const std::string whole = read_file((golden / name).string());
        ASSERT_GT(whole.size(), 4000u) << name;
        for (int round = 0; round < rounds; ++round) {
            std::string bent = whole;
            for (int64_t flips = between(1, 3); flips > 0; --flips) {
                const auto at = static_cast<size_t>(between(8, round % 3 == 0 ? static_cast<int64_t>(whole.size()) - 1 : 3000));
                // In the header a digit for a digit keeps the JSON valid and changes what it says.
                const bool digit = bent[at] >= '0' && bent[at] <= '9';
                bent[at] = digit ? static_cast<char>(between('0', '9')) : static_cast<char>(bent[at] ^ (1 << between(0, 7)));
            }
            file.write(bent);
            const result<check_result> checked = check_golden_file(file.path(), default_executor());
            ++outcomes[!checked.ok() ? "refused" : checked->outcome == verdict::passed ? "passed" : "noticed"];
        }
    }
    EXPECT_GT(outcomes["refused"], 0);
    EXPECT_GT(outcomes["passed"], 0);  // a flip in a description or in the last bits of a value
}

}  // namespace
}  // namespace ropewalk::test
