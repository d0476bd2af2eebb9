// The safetensors reader: what it reads, and that nothing a file claims is believed.
#include "tools/lib/safetensors.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/seeded.hpp"
#include "tests/tools/temporary_file.hpp"

namespace ropewalk::test {
namespace {

using toolkit::safetensors_file;

std::string with_length(const std::string& header, const std::string& data, uint64_t length) {
    std::string file(8, '\0');
    std::memcpy(file.data(), &length, sizeof length);
    return file + header + data;
}

std::string file_of(const std::string& header, const std::string& data) { return with_length(header, data, header.size()); }

template <class T>
std::string bytes_of(std::initializer_list<T> values) {
    std::string bytes;
    for (const T value : values) bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    return bytes;
}

// A file of one tensor `t`.
std::string one_tensor(const std::string& type, size_t count, const std::string& data) {
    return file_of(
        R"({"t":{"dtype":")" + type + R"(","shape":[)" + std::to_string(count) + R"(],"data_offsets":[0,)" + std::to_string(data.size()) + "]}}",
        data);
}

result<safetensors_file> open_bytes(const std::string& contents) {
    const temporary_file file(contents);
    return safetensors_file::open(file.path());  // the mapping outlives the name
}

std::string refusal_of(const std::string& contents) {
    const result<safetensors_file> opened = open_bytes(contents);
    if (opened.ok()) return "accepted";
    EXPECT_EQ(opened.state().code(), status_code::corrupt_data);
    return opened.state().text();
}

TEST(safetensors, reads_every_type_exactly) {
    const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
    const auto floats = [](const std::string& contents) { return *open_bytes(contents)->floats("t"); };
    EXPECT_EQ(floats(one_tensor("F32", 3, bytes_of<float>({1.5f, -0.0f, 3e38f}))), (std::vector<float>{1.5f, -0.0f, 3e38f}));
    EXPECT_EQ(floats(one_tensor("F64", 2, bytes_of<double>({0.1, -1e-60}))), (std::vector<float>{0.1f, -0.0f}));
    EXPECT_EQ(floats(one_tensor("BF16", 3, bytes_of<uint16_t>({0x3f80, 0xc000, 0x7f80}))), (std::vector<float>{1.0f, -2.0f, inf}));
    EXPECT_EQ(floats(one_tensor("F16", 7, bytes_of<uint16_t>({0x3c00, 0x0001, 0x83ff, 0x0400, 0x7bff, 0xfc00, 0x8000}))),
              (std::vector<float>{1.0f, 0x1p-24f, -1023 * 0x1p-24f, 0x1p-14f, 65504.0f, -inf, -0.0f}));
    EXPECT_TRUE(std::isnan(floats(one_tensor("F16", 1, bytes_of<uint16_t>({0x7e01})))[0]));
    EXPECT_TRUE(std::isnan(floats(one_tensor("F32", 1, bytes_of<float>({nan})))[0]));
    const std::string wide = one_tensor("I64", 2, bytes_of<int64_t>({-1, int64_t{1} << 62}));
    EXPECT_EQ(*open_bytes(wide)->integers("t"), (std::vector<int64_t>{-1, int64_t{1} << 62}));
    EXPECT_EQ(*open_bytes(one_tensor("I32", 1, bytes_of<int32_t>({-7})))->integers("t"), std::vector<int64_t>{-7});
    EXPECT_EQ(*open_bytes(one_tensor("U8", 2, bytes_of<uint8_t>({0, 255})))->integers("t"), (std::vector<int64_t>{0, 255}));
    EXPECT_EQ(*open_bytes(one_tensor("BOOL", 2, bytes_of<uint8_t>({0, 1})))->doubles("t"), (std::vector<double>{0.0, 1.0}));
}

TEST(safetensors, reads_shapes_metadata_and_unaligned_data) {
    // A header of odd length: no tensor is aligned to its element.
    const std::string header = R"({"__metadata__":{"kind":"rope"},"b":{"dtype":"F32","shape":[],"data_offsets":[4,8]},)"
                               R"("a":{"dtype":"U8","shape":[2,2],"data_offsets":[0,4]},"z":{"dtype":"F64","shape":[3,0],"data_offsets":[8,8]}} )";
    const result<safetensors_file> file = open_bytes(file_of(header, bytes_of<uint8_t>({1, 2, 3, 4}) + bytes_of<float>({2.5f})));
    ASSERT_TRUE(file.ok()) << file.state().text();
    EXPECT_EQ(file->metadata().at("kind"), "rope");
    EXPECT_EQ(file->find("a")->shape, (std::vector<int64_t>{2, 2}));
    EXPECT_EQ(toolkit::shape_text(file->find("a")->shape), "[2, 2]");
    EXPECT_EQ(file->find("b")->elements, 1);
    EXPECT_EQ(*file->floats("b"), std::vector<float>{2.5f});
    EXPECT_TRUE(file->doubles("z")->empty());
    EXPECT_EQ(file->find("absent"), nullptr);
}

TEST(safetensors, names_what_it_cannot_convert) {
    const result<safetensors_file> file = open_bytes(one_tensor("F32", 1, bytes_of<float>({1.0f})));
    EXPECT_EQ(file->floats("x").state().code(), status_code::not_found);
    EXPECT_STREQ(file->floats("x").state().text(), "tensor x is missing");
    EXPECT_EQ(file->integers("t").state().code(), status_code::unsupported);
    EXPECT_STREQ(file->integers("t").state().text(), "tensor t has type F32; must be I64, I32 or U8");
    EXPECT_EQ(open_bytes(one_tensor("U64", 1, bytes_of<uint64_t>({1})))->doubles("t").state().code(), status_code::unsupported);
}

TEST(safetensors, refuses_what_is_no_file) {
    EXPECT_EQ(safetensors_file::open("/nonexistent/file").state().code(), status_code::not_found);
    EXPECT_STREQ(safetensors_file::open(std::filesystem::temp_directory_path()).state().text(), "not a regular file");
}

TEST(safetensors, refuses_headers_that_break_the_format) {
    const std::string four = bytes_of<float>({1.0f});
    const auto entry = [](const std::string& fields) { return R"({"t":{)" + fields + "}}"; };
    const auto refused = [&](const std::string& header) { return refusal_of(file_of(header, four)); };
    EXPECT_EQ(refusal_of(""), "the file has 0 bytes; a safetensors file has at least 8: truncated");
    EXPECT_EQ(refusal_of("1234567"), "the file has 7 bytes; a safetensors file has at least 8: truncated");
    EXPECT_EQ(refusal_of(with_length("{}", "", 3)), "header length is 3; the file has 2 bytes after it: truncated");
    EXPECT_EQ(refusal_of(with_length("{}", "", ~uint64_t{0})), "header length is 18446744073709551615; must be at most 100000000");
    EXPECT_EQ(refusal_of(file_of("", "")), "the header of 0 bytes is no JSON object");
    EXPECT_EQ(refusal_of(file_of("[]", "")), "the header of 2 bytes is no JSON object");
    EXPECT_EQ(refusal_of(file_of("{\"a\":", "")), "the header of 5 bytes is no JSON object");
    EXPECT_EQ(refusal_of(file_of("{\"\xff\":1}", "")), "the header of 7 bytes is no JSON object");  // not UTF-8
    EXPECT_EQ(refusal_of(file_of(std::string(100000, '['), "")), "the header of 100000 bytes is no JSON object");
    EXPECT_EQ(refused(R"({"__metadata__":3})"), "header: __metadata__ is no object");
    EXPECT_EQ(refused(R"({"__metadata__":{"a":3}})"), "header: __metadata__.a is no text");
    EXPECT_EQ(refused(R"({"t":4})"), "header: tensor t lacks dtype, shape or data_offsets");
    EXPECT_EQ(refused(entry(R"("dtype":"F32","shape":[1])")), "header: tensor t lacks dtype, shape or data_offsets");
    EXPECT_EQ(refused(entry(R"("dtype":1,"shape":[1],"data_offsets":[0,4])")), "header: dtype of tensor t is no text");
    EXPECT_EQ(refused(entry(R"("dtype":"F33","shape":[1],"data_offsets":[0,4])")), "header: dtype of tensor t is F33; no type of the format");
    for (const char* shape : {"[-1]", "[1.0]", "[\"1\"]", "1", "[9223372036854775808]", "null"}) {
        EXPECT_EQ(refused(entry(R"("dtype":"F32","data_offsets":[0,4],"shape":)" + std::string(shape))),
                  "header: shape of tensor t is no array of sizes");
    }
    EXPECT_EQ(refused(entry(R"("dtype":"F32","data_offsets":[0,4],"shape":[4294967296,4294967296])")), "header: shape of tensor t overflows");
    EXPECT_EQ(refused(entry(R"("dtype":"F64","data_offsets":[0,4],"shape":[2305843009213693952])")), "header: size of tensor t overflows");
    for (const char* offsets : {"[4,0]", "[0]", "[0,4,8]", "[-4,0]", "[0,4.5]", "{}"}) {
        EXPECT_EQ(refused(entry(R"("dtype":"F32","shape":[1],"data_offsets":)" + std::string(offsets))),
                  "header: data_offsets of tensor t are no range");
    }
}

TEST(safetensors, refuses_data_that_does_not_fit_the_header) {
    const std::string eight = bytes_of<float>({1.0f, 2.0f});
    const auto refused = [&](const std::string& header) { return refusal_of(file_of(header, eight)); };
    EXPECT_EQ(refused(R"({"t":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})"),
              "tensor t ends at byte 16 of the data; the file holds 8: truncated");
    EXPECT_EQ(refused(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}})"), "tensor t F32 [1] takes 4 bytes; data_offsets hold 8");
    EXPECT_EQ(refused(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})"), "the tensors end at byte 4 of the data; the file holds 8");
    EXPECT_EQ(refused(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})"), "bytes 0 to 4 of the data belong to no tensor");
    EXPECT_EQ(refused(R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"u":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})"),
              "tensors overlap at byte 4 of the data");
    EXPECT_EQ(refused(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"t":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})"),
              "header: tensor t appears twice");
}

TEST(safetensors, accepts_the_same_key_at_different_depths) {
    const std::string header = R"({"dtype":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"u":{"dtype":"U8","shape":[0],"data_offsets":[4,4]}})";
    EXPECT_TRUE(open_bytes(file_of(header, bytes_of<float>({1.0f}))).ok());
}

TEST(safetensors, every_truncation_is_refused) {
    const std::string whole = one_tensor("F32", 2, bytes_of<float>({1.0f, 2.0f}));
    ASSERT_TRUE(open_bytes(whole).ok());
    for (size_t size = 0; size < whole.size(); ++size) EXPECT_NE(refusal_of(whole.substr(0, size)), "accepted") << size;
    EXPECT_NE(refusal_of(whole + '\0'), "accepted");
}

TEST(safetensors, moves_leave_one_owner) {
    result<safetensors_file> first = open_bytes(one_tensor("U8", 1, "x"));
    safetensors_file second = std::move(*first);
    safetensors_file third = std::move(second);
    EXPECT_EQ(*third.integers("t"), std::vector<int64_t>{'x'});
}

class corrupted_safetensors : public seeded {};

// Flipped bits and bytes anywhere, most of them in the header: refused, or every tensor still lies inside the file.
TEST_F(corrupted_safetensors, flipped_bytes_never_crash) {
    const std::string whole = read_file(ROPEWALK_SOURCE_DIR "/tests/golden/learned/bert.safetensors");
    ASSERT_GT(whole.size(), 1000u);
    const temporary_file file;
    int refused = 0;
    for (int round = 0; round < 1000; ++round) {
        std::string bent = whole;
        for (int64_t flips = between(1, 3); flips > 0; --flips) {
            const size_t at = static_cast<size_t>(between(0, round % 10 == 0 ? static_cast<int64_t>(whole.size()) - 1 : 900));
            bent[at] = round % 2 == 0 ? static_cast<char>(bent[at] ^ (1 << between(0, 7))) : static_cast<char>(between(0, 255));
        }
        file.write(bent);
        const result<safetensors_file> opened = safetensors_file::open(file.path());
        refused += !opened.ok();
        if (!opened.ok()) continue;
        for (const auto& [name, tensor] : opened->tensors()) {
            const result<std::vector<double>> values = opened->doubles(name);
            EXPECT_TRUE(!values.ok() || static_cast<int64_t>(values->size()) == tensor.elements);
        }
    }
    EXPECT_GT(refused, 100);
    EXPECT_LT(refused, 1000);
}

}  // namespace
}  // namespace ropewalk::test
