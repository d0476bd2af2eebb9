// Arguments of Python: arrays of numpy, torch and whoever else speaks DLPack or the buffer protocol, as views of their memory. What does not fit is a
// TypeError or ValueError that names the argument, what it got and what it expects.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <ropewalk/types.hpp>

namespace ropewalk::python {

namespace nb = nanobind;

// An argument that is an array, or None where the function says so. Borrowed: the caller's frame keeps it alive for the call.
struct array {
    nb::handle object;
    [[nodiscard]] bool given() const { return object.is_valid() && !object.is_none(); }
};

enum class access { read, write };

// An array seen as pointer, extents and strides in elements.
class array_view {
public:
    array_view() = default;
    // TypeError for what is no array of the host's memory, is read-only where it is to be written, or takes part in autograd.
    array_view(array argument, const char* name, access mode);

    [[nodiscard]] void* data() const { return static_cast<char*>(tensor_.data) + tensor_.byte_offset; }
    [[nodiscard]] int32_t ndim() const { return tensor_.ndim; }
    [[nodiscard]] int64_t extent(int32_t axis) const { return tensor_.shape[axis]; }
    [[nodiscard]] int64_t stride(int32_t axis) const { return tensor_.strides != nullptr ? tensor_.strides[axis] : dense_stride(axis); }
    [[nodiscard]] int64_t elements() const;
    [[nodiscard]] bool contiguous() const;
    [[nodiscard]] nb::dlpack::dtype type() const { return bf16_bits_ ? bf16 : tensor_.dtype; }
    [[nodiscard]] std::string type_name() const;
    [[nodiscard]] std::string shape_text() const;

    static constexpr nb::dlpack::dtype bf16{static_cast<uint8_t>(nb::dlpack::dtype_code::Bfloat), 16, 1};

private:
    [[nodiscard]] int64_t dense_stride(int32_t axis) const;

    nb::dlpack::dltensor tensor_;
    nb::ndarray<nb::ro> owner_;  // where the exporter was asked for a handle; else borrowed
    bool bf16_bits_ = false;
};

// numpy has no bf16. This says that an array of uint16 holds the bits of one.
struct bf16_array {
    nb::object bits;
};

// A tensor [tokens, heads, dim] of fp32, bf16 or fp16; absent where the argument is None.
class tensor {
public:
    tensor() = default;
    tensor(array argument, const char* name, access mode);

    operator head_view() const { return view_; }
    operator const_head_view() const { return view_; }
    [[nodiscard]] const head_view& view() const { return view_; }

private:
    array_view array_;
    head_view view_;
};

[[noreturn]] void wrong_type(const char* name, const std::string& got, const std::string& expected);
[[noreturn]] void wrong_value(const char* name, const std::string& got, const std::string& expected);

// Numbers of one type, contiguous: an array of exactly this type, or a list or tuple that is copied. None: empty.
template <class T>
class numbers {
public:
    numbers() = default;
    numbers(array argument, const char* name) {
        if (!argument.given()) return;
        if (nb::isinstance<nb::list>(argument.object) || nb::isinstance<nb::tuple>(argument.object)) {
            if (!nb::try_cast<std::vector<T>>(argument.object, copy_)) wrong_type(name, "a sequence", std::string("numbers that fit ") + expected());
            span_ = copy_;
            shape_ = {static_cast<int64_t>(copy_.size())};
            return;
        }
        array_ = array_view(argument, name, access::read);
        if (array_.type() != nb::dtype<T>()) wrong_type(name, array_.type_name(), expected());
        if (!array_.contiguous()) wrong_value(name, "strides with gaps", "a contiguous array");
        span_ = {static_cast<const T*>(array_.data()), static_cast<std::size_t>(array_.elements())};
        for (int32_t axis = 0; axis < array_.ndim(); ++axis) shape_.push_back(array_.extent(axis));
    }

    operator std::span<const T>() const { return span_; }
    [[nodiscard]] std::span<const T> span() const { return span_; }
    [[nodiscard]] std::vector<T> copy() const { return {span_.begin(), span_.end()}; }
    [[nodiscard]] const std::vector<int64_t>& shape() const { return shape_; }

    static const char* expected() { return nb::detail::dtype_traits<T>::name.text; }

private:
    array_view array_;
    std::vector<T> copy_;
    std::vector<int64_t> shape_;
    std::span<const T> span_;
};

// Numbers of one type to be written, contiguous. None: empty.
template <class T>
std::span<T> written(array argument, const char* name) {
    if (!argument.given()) return {};
    const array_view view(argument, name, access::write);
    if (view.type() != nb::dtype<T>()) wrong_type(name, view.type_name(), numbers<T>::expected());
    if (!view.contiguous()) wrong_value(name, "strides with gaps", "a contiguous array");
    return {static_cast<T*>(view.data()), static_cast<std::size_t>(view.elements())};
}

// A new array of numpy.
template <class T>
nb::object new_array(std::vector<std::size_t> shape, std::span<T>& content) {
    std::size_t elements = 1;
    for (const std::size_t extent : shape) elements *= extent;
    T* data = new T[elements];
    content = {data, elements};
    nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
    return nb::ndarray<nb::numpy, T>(data, shape.size(), shape.data(), owner).cast();
}

// A new array of the kind and type that `model` has.
nb::object new_like(nb::handle model, const std::vector<int64_t>& shape);

}  // namespace ropewalk::python

template <>
struct nanobind::detail::type_caster<ropewalk::python::array> {
    NB_TYPE_CASTER(ropewalk::python::array, const_name("ropewalk.typing.Array"))
    bool from_python(handle source, uint8_t, cleanup_list*) noexcept {
        value = {source};
        return true;
    }
};
