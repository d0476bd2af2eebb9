#include <condition_variable>
#include <memory>
#include <mutex>

#include "bind.hpp"
#include "openmp_executor.hpp"

namespace ropewalk::python {
namespace {

thread_local std::optional<nb::python_error> callback_error;

// One run of a callback executor. Each item runs exactly once, whatever the callback does; its misuse is an error of its own.
class callback_run {
public:
    callback_run(int32_t items, executor::task item, void* context) : started_(static_cast<std::size_t>(items)), item_(item), context_(context) {}

    // From Python, on any thread.
    void call(int64_t i) {
        const nb::gil_scoped_release released;
        {
            const std::scoped_lock lock(mutex_);
            if (closed_) throw std::runtime_error("item: the run has ended");
            if (i < 0 || i >= static_cast<int64_t>(started_.size())) throw nb::value_error("item: no such item");
            if (started_[static_cast<std::size_t>(i)]) throw std::runtime_error("item: called twice");
            started_[static_cast<std::size_t>(i)] = true;
            ++running_;
        }
        item_(context_, static_cast<int32_t>(i));
        const std::scoped_lock lock(mutex_);
        --running_;
        ended_.notify_all();
    }

    // Waits for items on other threads and runs those that were left out.
    void finish() {
        std::unique_lock lock(mutex_);
        closed_ = true;
        ended_.wait(lock, [this] { return running_ == 0; });
        for (std::size_t i = 0; i < started_.size(); ++i) {
            if (!started_[i]) item_(context_, static_cast<int32_t>(i));
        }
    }

private:
    std::mutex mutex_;
    std::condition_variable ended_;
    std::vector<bool> started_;
    int32_t running_ = 0;
    bool closed_ = false;
    executor::task item_;
    void* context_;
};

class callback_executor final : public executor {
public:
    callback_executor(int32_t concurrency, nb::callable run) : concurrency_(concurrency), run_(std::move(run)) {
        if (concurrency < 1) wrong_value("concurrency", std::to_string(concurrency), "at least 1");
    }

    [[nodiscard]] int32_t concurrency() const noexcept override { return concurrency_; }

    void run(int32_t items, task item, void* context) noexcept override {
        const auto run = std::make_shared<callback_run>(items, item, context);
        {
            const nb::gil_scoped_acquire acquired;
            try {
                run_(items, nb::cpp_function([run](int64_t i) { run->call(i); }, "i"_a));
            } catch (nb::python_error& error) {
                callback_error.emplace(error);
            }
        }
        run->finish();
    }

private:
    int32_t concurrency_;
    nb::callable run_;
};

executor* default_choice = nullptr;

executor& openmp_or_serial() {
    static serial_executor serial;
    const result<openmp_executor*> openmp = openmp_executor::instance();
    return openmp.ok() ? static_cast<executor&>(**openmp) : serial;
}

}  // namespace

executor& default_executor_of_package() {
    if (default_choice == nullptr) default_choice = &openmp_or_serial();
    return *default_choice;
}

void rethrow_callback_error() {
    if (!callback_error.has_value()) return;
    const nb::python_error error = std::move(*callback_error);
    callback_error.reset();
    throw nb::python_error(error);
}

void bind_executors(nb::module_& m) {
    nb::class_<executor>(m, "Executor", "Who runs the work of a call. Safe to use from several threads at once.")
        .def_prop_ro("concurrency", &executor::concurrency, "Items that can run at the same time; plans are cut for it.");
    nb::class_<serial_executor, executor>(m, "SerialExecutor", "Everything on the calling thread.").def(nb::init<>());
    nb::class_<openmp_executor, executor>(m, "OpenMPExecutor",
                                          "The OpenMP pool of the process, which inside torch is torch's; it has as many threads as\n"
                                          "torch.set_num_threads() says. In a child of fork() it is serial. Unsupported where there is no libgomp.")
        .def(nb::new_([] { return take(openmp_executor::instance()); }), nb::rv_policy::reference);
    nb::class_<callback_executor, executor>(
        m, "CallbackExecutor",
        "A pool of the caller's. run(items, item) is called on the thread that made the call; it has to call item(i) once for\n"
        "every i in range(items), on any threads, and return when all have returned. item(i) does not hold the GIL while it\n"
        "works. What run raises is raised by the call, after all its work was done.")
        .def(nb::init<int32_t, nb::callable>(), "concurrency"_a, "run"_a);
    m.def("default_executor", &default_executor_of_package, nb::rv_policy::reference,
          "The executor of calls that name none: the process's OpenMP pool, or serial where there is no OpenMP runtime.");
    m.def(
        "set_default_executor",
        [](executor& e) {
            nb::module_::import_("ropewalk._core").attr("_default_executor") = nb::find(e);  // keeps it
            default_choice = &e;
        },
        "executor"_a, "Makes `executor` the default of this process.");
}

}  // namespace ropewalk::python
