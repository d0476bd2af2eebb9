#include <cstdio>

#include "bind.hpp"
#include "tools/lib/info.hpp"

namespace ropewalk::python {
namespace {

// ropewalk-info, as `python -m ropewalk`. argv begins with the program's name.
int info(const std::vector<std::string>& argv) {
    std::vector<const char*> pointers;
    for (const std::string& argument : argv) pointers.push_back(argument.c_str());
    executor& on = default_executor_of_package();
    const nb::object kind = nb::cast(&on, nb::rv_policy::reference).type().attr("__name__");
    const int code = toolkit::info_main(static_cast<int>(pointers.size()), pointers.data(), nb::cast<std::string>(kind), on.concurrency());
    std::fflush(stdout);
    return code;
}

void bind_targets(nb::module_& m) {
    static constexpr target all[] = {target::scalar, target::avx2, target::avx512, target::avx512_bf16, target::neon, target::neon_bf16};
    m.def("version", &version);
    m.def(
        "active_target", [] { return name(take(active_target())); }, "The instruction set in force, e.g. 'avx2'.");
    m.def(
        "limit_target", [](std::string_view text) { check(limit_target(take(target_from_name(text)))); }, "target"_a,
        "Limits what kernels may use; refused where the host lacks it.");
    m.def(
        "supported_targets",
        [] {
            std::vector<std::string_view> names;
            for (const target t : all) {
                if (target_compiled(t) && target_supported(t)) names.push_back(name(t));
            }
            return names;
        },
        "Targets that this build has and this host can run.");
    m.def("_info", &info, "argv"_a);
}

// uint16, or bfloat16 of ml_dtypes, which is looked at as uint16.
bf16_array make_bf16(nb::object bits) {
    if (nb::hasattr(bits, "dtype") && nb::str(bits.attr("dtype")).equal(nb::str("bfloat16"))) bits = bits.attr("view")("uint16");
    const array_view view({bits}, "bits", access::read);
    if (view.type() != nb::dtype<uint16_t>()) wrong_type("bits", view.type_name(), "uint16 or ml_dtypes.bfloat16");
    return {bits};
}

}  // namespace

NB_MODULE(_core, m) {
    nb::set_leak_warnings(false);  // what others still hold when the interpreter ends, e.g. tracebacks of pytest, is no leak of ours
    bind_errors(m);
    bind_targets(m);
    bind_executors(m);
    nb::class_<bf16_array>(m, "bf16",
                           "numpy has no bf16: says that an array of uint16 holds bf16 bits (ml_dtypes.bfloat16 is taken too). Not copied.")
        .def(
            "__init__", [](bf16_array* self, nb::object bits) { new (self) bf16_array(make_bf16(std::move(bits))); }, "bits"_a)
        .def_ro("bits", &bf16_array::bits, "The array of uint16.");
    bind_rope(m);
    bind_absolute(m);
    bind_biases(m);
    bind_cache(m);
    bind_attention(m);
    bind_config(m);
}

}  // namespace ropewalk::python
