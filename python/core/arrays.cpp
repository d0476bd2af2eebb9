#include "arrays.hpp"

#include <unordered_map>

namespace ropewalk::python {
namespace {

// The part of DLPack's C exchange API (dlpack.h 1.3) that is used here: a view for the time of a call, in 0.1 us a tensor of torch where its
// __dlpack__() takes 7.
struct exchange_api {
    uint32_t major, minor;
    const exchange_api* previous;
    void* managed[3];
    int (*borrow)(void* object, nb::dlpack::dltensor* out);
};

using borrow_function = int (*)(void*, nb::dlpack::dltensor*);

borrow_function borrow_of(PyTypeObject* type) {
    static auto& known = *new std::unordered_map<PyTypeObject*, borrow_function>();  // types in it are never freed
    if (const auto found = known.find(type); found != known.end()) return found->second;
    borrow_function function = nullptr;
    const nb::handle type_object(reinterpret_cast<PyObject*>(type));
    if (nb::hasattr(type_object, "__dlpack_c_exchange_api__")) {
        const nb::object capsule = type_object.attr("__dlpack_c_exchange_api__");
        const auto* api = static_cast<const exchange_api*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
        if (api == nullptr) PyErr_Clear();
        while (api != nullptr && api->major != nb::dlpack::major_version) api = api->previous;
        if (api != nullptr) function = api->borrow;
    }
    type_object.inc_ref();
    known.emplace(type, function);
    return function;
}

std::string class_name(nb::handle object) { return nb::cast<std::string>(object.type().attr("__name__")); }

bool requires_grad(nb::handle object) {
    static const nb::handle attribute = nb::str("requires_grad").release();
    return nb::cast<bool>(object.attr(attribute));
}

}  // namespace

void wrong_type(const char* name, const std::string& got, const std::string& expected) {
    throw nb::type_error((std::string(name) + " is " + got + "; expected " + expected).c_str());
}

void wrong_value(const char* name, const std::string& got, const std::string& expected) {
    throw nb::value_error((std::string(name) + " has " + got + "; expected " + expected).c_str());
}

array_view::array_view(array argument, const char* name, access mode) {
    nb::handle object = argument.object;
    if (nb::isinstance<bf16_array>(object)) {
        object = nb::cast<const bf16_array&>(object).bits;
        bf16_bits_ = true;
    }
    if (const borrow_function borrow = borrow_of(Py_TYPE(object.ptr()))) {
        if (requires_grad(object)) wrong_type(name, "a tensor that requires grad", "one without: there is no backward pass, call detach()");
        if (borrow(object.ptr(), &tensor_) != 0) {  // torch's own text says nothing of the argument
            PyErr_Clear();
            wrong_type(name, class_name(object) + " of another device or layout", "a dense array on the CPU");
        }
    } else {
        const bool arrayed = nb::ndarray_check(object) && (mode == access::read ? nb::try_cast(object, owner_) : [&] {
                                 nb::ndarray<> writable;
                                 if (!nb::try_cast(object, writable)) return false;
                                 owner_ = nb::ndarray<nb::ro>(writable);
                                 return true;
                             }());
        if (!arrayed) wrong_type(name, class_name(object), mode == access::read ? "an array (DLPack or buffer protocol)" : "a writable array");
        tensor_ = {const_cast<void*>(owner_.data()),
                   {owner_.device_type(), owner_.device_id()},
                   static_cast<int32_t>(owner_.ndim()),
                   owner_.dtype(),
                   const_cast<int64_t*>(owner_.shape_ptr()),
                   const_cast<int64_t*>(owner_.stride_ptr()),
                   0};
    }
    if (tensor_.device.device_type != nb::device::cpu::value) wrong_type(name, "not in the host's memory", "an array on the CPU");
    if (bf16_bits_ && tensor_.dtype != nb::dtype<uint16_t>()) wrong_type(name, type_name(), "uint16 inside of bf16()");
}

int64_t array_view::elements() const {
    int64_t count = 1;
    for (int32_t axis = 0; axis < ndim(); ++axis) count *= extent(axis);
    return count;
}

int64_t array_view::dense_stride(int32_t axis) const {
    int64_t stride = 1;
    for (int32_t later = axis + 1; later < ndim(); ++later) stride *= extent(later);
    return stride;
}

bool array_view::contiguous() const {
    if (elements() == 0) return true;
    for (int32_t axis = 0; axis < ndim(); ++axis) {
        if (extent(axis) != 1 && stride(axis) != dense_stride(axis)) return false;
    }
    return true;
}

std::string array_view::type_name() const {
    using code = nb::dlpack::dtype_code;
    const char* kind = "elements of an unknown kind with bits ";
    switch (static_cast<code>(tensor_.dtype.code)) {
        case code::Int: kind = "int"; break;
        case code::UInt: kind = "uint"; break;
        case code::Float: kind = "float"; break;
        case code::Bfloat: kind = "bfloat"; break;
        case code::Complex: kind = "complex"; break;
        case code::Bool: return "bool";
        default: break;
    }
    return kind + std::to_string(tensor_.dtype.bits);
}

std::string array_view::shape_text() const {
    std::string text = "shape [";
    for (int32_t axis = 0; axis < ndim(); ++axis) text += (axis == 0 ? "" : ", ") + std::to_string(extent(axis));
    return text + "]";
}

tensor::tensor(array argument, const char* name, access mode) {
    if (!argument.given()) return;
    array_ = array_view(argument, name, mode);
    const nb::dlpack::dtype type = array_.type();
    dtype element = dtype::fp32;
    if (type == array_view::bf16) {
        element = dtype::bf16;
    } else if (type.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Float) && type.lanes == 1 && type.bits == 16) {
        element = dtype::fp16;
    } else if (type != nb::dtype<float>()) {
        wrong_type(name, array_.type_name(), "float32, bfloat16 or float16");
    }
    if (array_.ndim() != 3) wrong_value(name, array_.shape_text(), "three axes [tokens, heads, dim]");
    if (array_.extent(1) > INT32_MAX || array_.extent(2) > INT32_MAX) wrong_value(name, array_.shape_text(), "extents below 2^31");
    view_ = {array_.data(),    element,          array_.extent(0), static_cast<int32_t>(array_.extent(1)), static_cast<int32_t>(array_.extent(2)),
             array_.stride(0), array_.stride(1), array_.stride(2)};
    if (view_.dim == 1) view_.dim_stride = 1;  // torch and numpy leave the stride of an axis of one element open
}

nb::object new_like(nb::handle model, const std::vector<int64_t>& shape) {
    if (nb::isinstance<bf16_array>(model)) return nb::cast(bf16_array{new_like(nb::cast<const bf16_array&>(model).bits, shape)});
    if (nb::hasattr(model, "new_empty")) return model.attr("new_empty")(shape);
    return nb::module_::import_("numpy").attr("empty")(shape, nb::arg("dtype") = model.attr("dtype"));
}

}  // namespace ropewalk::python
