// The threads of a parallel region, and how they wait for each other.
//
// Kernels follow each other within microseconds, and a thread that sleeps meanwhile has to be woken for each of them: so
// it spins. But the one that it waits for may have no processor, because somebody else has it, perhaps another server's
// spinning thread; then spinning takes from others what this one waits for, and a thread that has slept is let in before
// those that never do. So a thread spins for as long as a kernel may take to end elsewhere, and sleeps after that; and the
// more often it had to, the sooner. Giving the processor away without sleeping (sched_yield) was far worse than either:
// beside three busy processes a step took 112 ms instead of 44.
#pragma once

#include <linux/futex.h>
#include <omp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace octavo {

// Looks, each after a pause of the processor, of some tens of nanoseconds: a tenth of a millisecond at most.
constexpr int MOST_LOOKS = 4000, LEAST_LOOKS = 500;
constexpr int REGAIN = 16;

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb" ::: "memory");
#endif
}

// Where the threads of one region meet, again and again. It lives as long as the region.
class Meeting {
    alignas(64) std::atomic<int> arrived{0};
    alignas(64) std::atomic<int> round{0};  // how often all have met
    std::atomic<int> asleep{0};

    void sleep(int before) {
        asleep.fetch_add(1);
        while (round.load() == before) syscall(SYS_futex, &round, FUTEX_WAIT_PRIVATE, before, nullptr, nullptr, 0);
        asleep.fetch_sub(1);
    }

    void wait(int before) {
        static thread_local int patience = MOST_LOOKS;
        for (int look = 0; look < patience; ++look) {
            if (round.load(std::memory_order_acquire) != before) {
                patience = std::min(MOST_LOOKS, patience + patience / REGAIN);
                return;
            }
            pause();
        }
        patience = std::max(LEAST_LOOKS, patience / 2);
        sleep(before);
    }

public:
    const void* told = nullptr;  // see Team::told_by_first

    // Returns when `size` threads have called it as often as this one; all that they wrote before is seen after.
    void meet(int64_t size) {
        const int before = round.load(std::memory_order_relaxed);
        if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 < size) return wait(before);
        arrived.store(0, std::memory_order_relaxed);
        round.store(before + 1);  // before `asleep` is looked at, as who sleeps counts itself before it looks at `round`
        if (asleep.load()) syscall(SYS_futex, &round, FUTEX_WAKE_PRIVATE, 1 << 30, nullptr, nullptr, 0);
    }
};

struct Team {
    int64_t thread, size;
    Meeting* meeting;

    // Of the parallel region around; all its threads give the same place to meet, made before it.
    static Team here(Meeting& meeting) { return {omp_get_thread_num(), omp_get_num_threads(), &meeting}; }

    // Wait for the others.
    void meet() const {
        if (size > 1) meeting->meet(size);
    }

    // What the first thread makes, told to all.
    template <typename Make>
    auto told_by_first(Make make) const {
        decltype(make()) made{};
        if (thread == 0) {
            made = make();
            meeting->told = &made;
        }
        meet();
        if (thread) made = *static_cast<const decltype(made)*>(meeting->told);
        meet();  // the first keeps it until then
        return made;
    }

    // This thread's part of `count` things that lie in a row.
    int64_t begin(int64_t count) const { return count * thread / size; }
    int64_t end(int64_t count) const { return count * (thread + 1) / size; }
};

}  // namespace octavo
