// The OpenMP pool that the process has already, e.g. torch's.
//
// Inside torch it is twice as fast as a pool of its own: after each of torch's parallel regions its idle workers spin on their cores, where threads
// of another pool would have to run. Nothing here is compiled with -fopenmp: the runtime's entry points are looked up when they are first needed, so
// that whatever runtime the process has is shared (libiomp5 and LLVM's libomp have the same entry points), and none is needed to import us.
#pragma once

#include <ropewalk/executor.hpp>
#include <ropewalk/status.hpp>

namespace ropewalk::python {

class openmp_executor final : public executor {
public:
    // unsupported where the process has no OpenMP runtime and none can be loaded.
    static result<openmp_executor*> instance() noexcept;

    // As many threads as a parallel region of the calling thread gets (torch.set_num_threads, OMP_NUM_THREADS). 1 in a child of fork(): the threads
    // of the pool did not come along, and a region would wait for them for ever.
    [[nodiscard]] int32_t concurrency() const noexcept override;
    void run(int32_t items, task item, void* context) noexcept override;

private:
    using region_function = void (*)(void (*)(void*), void*, unsigned, unsigned);
    using threads_function = int (*)();
    region_function parallel_ = nullptr;  // GOMP_parallel
    threads_function max_threads_ = nullptr;
};

}  // namespace ropewalk::python
