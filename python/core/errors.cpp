#include "bind.hpp"

namespace ropewalk::python {
namespace {

PyObject* exceptions[10];

// ropewalk.<name>, a subclass of ropewalk.Error and of `also`, for one status code.
void add(nb::module_& m, status_code code, const char* name, PyObject* also, const char* doc) {
    const nb::handle error = exceptions[0];
    const nb::tuple bases = also != nullptr ? nb::make_tuple(error, nb::handle(also)) : nb::make_tuple(error);
    PyObject* type = PyErr_NewExceptionWithDoc((std::string("ropewalk.") + name).c_str(), doc, bases.ptr(), nullptr);
    if (type == nullptr) throw nb::python_error();
    exceptions[static_cast<int>(code)] = type;
    m.attr(name) = nb::handle(type);
}

}  // namespace

void bind_errors(nb::module_& m) {
    exceptions[0] = PyErr_NewExceptionWithDoc("ropewalk.Error", "A call was refused and changed nothing; the text names argument, value and rule.",
                                              nullptr, nullptr);
    m.attr("Error") = nb::handle(exceptions[0]);
    add(m, status_code::invalid_argument, "InvalidArgument", PyExc_ValueError, "An argument breaks a rule.");
    add(m, status_code::out_of_range, "OutOfRange", PyExc_ValueError, "A position, page, slot or length lies outside what exists.");
    add(m, status_code::unsupported, "Unsupported", PyExc_NotImplementedError, "Legal, but this build or this host cannot do it.");
    add(m, status_code::out_of_pages, "OutOfPages", nullptr, "The page pool cannot satisfy the request.");
    add(m, status_code::out_of_memory, "OutOfMemory", PyExc_MemoryError, "The host has no memory left.");
    add(m, status_code::workspace_too_small, "WorkspaceTooSmall", PyExc_ValueError, "The workspace has fewer bytes than the plan needs.");
    add(m, status_code::not_found, "NotFound", PyExc_LookupError, "No such sequence or file.");
    add(m, status_code::corrupt_data, "CorruptData", PyExc_ValueError, "A file does not hold what it claims.");
    add(m, status_code::needs_rerotation, "NeedsRerotation", nullptr, "The keys of a sequence have to be rotated anew first.");
    nb::register_exception_translator([](const std::exception_ptr& p, void*) {
        try {
            std::rethrow_exception(p);
        } catch (const refused& r) {
            PyErr_SetString(exceptions[static_cast<int>(r.state.code())], r.state.text());
        }
    });
}

}  // namespace ropewalk::python
