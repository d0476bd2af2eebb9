// ropewalk on the thread pool of the matrix products.
//
// Debian's oneDNN runs on GNU OpenMP, whose idle workers spin between regions so that the next one starts at once. A second pool would find the cores
// taken: TBB workers, the default of ropewalk, share them with spinning threads, and attention runs at the speed of one core. So attention runs on
// OpenMP as well. With a oneDNN built for TBB the default executor is the right one, with a oneDNN built for a thread pool of yours
// (`threadpool_iface`) an executor over that pool.
#pragma once

#include <omp.h>

#include <ropewalk/executor.hpp>

namespace llama {

class openmp_executor final : public ropewalk::executor {
public:
    [[nodiscard]] int32_t concurrency() const noexcept override { return omp_get_max_threads(); }

    void run(int32_t items, task item, void* context) noexcept override {
        if (items == 1) return item(context, 0);
            // The whole team, always: GNU OpenMP starts and ends threads where the size changes from region to region.
#pragma omp parallel for schedule(static, 1)
        for (int32_t i = 0; i < items; ++i) item(context, i);
    }
};

}  // namespace llama
