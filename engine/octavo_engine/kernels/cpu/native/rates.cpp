// What this machine can do at best, as the kernels would use it: how fast memory is read, and how fast products are
// summed when every operand is in a register. A kernel's time is judged by these.

#include <ctime>

#include "vectors.h"

namespace octavo {
namespace {

constexpr int64_t STREAM = 8;  // vectors read in one round

// Each thread reads its share once; the sum keeps the reads from being left out.
float read(const float* from, int64_t vectors, int threads) {
    float total = 0;
#pragma omp parallel for num_threads(threads) reduction(+ : total)
    for (int64_t thread = 0; thread < threads; ++thread) {
        Vec sums[STREAM] = {};
        const int64_t begin = vectors * thread / threads, end = vectors * (thread + 1) / threads;
        for (int64_t at = begin; at + STREAM <= end; at += STREAM) {
            __builtin_prefetch(from + (at + 16 * STREAM) * LANES);
#pragma GCC unroll 8
            for (int64_t i = 0; i < STREAM; ++i) sums[i] = sums[i] + load(from + (at + i) * LANES);
        }
        for (const Vec& part : sums) total += sum(part);
    }
    return total;
}

double seconds_of_thread() {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// `rounds` of a whole register tile: TILE_ROWS x 2 sums, which begin with numbers of their own and meet operands from
// memory, so that the compiler can neither merge them nor know their end.
template <typename T>
float multiply(const float* numbers, int64_t rounds) {
    const auto low = Dot<T>::load(reinterpret_cast<const T*>(numbers));
    const auto high = Dot<T>::load(reinterpret_cast<const T*>(numbers + LANES));
    Vec sums[TILE_ROWS][2];
#pragma GCC unroll 12
    for (int64_t row = 0; row < TILE_ROWS; ++row)
        for (int64_t half = 0; half < 2; ++half) sums[row][half] = load(numbers + (2 * row + half) * LANES);
    for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
        for (int64_t row = 0; row < TILE_ROWS; ++row) {
            sums[row][0] = Dot<T>::add(sums[row][0], low, high);
            sums[row][1] = Dot<T>::add(sums[row][1], high, high);
        }
    }
    float total = 0;
    for (const auto& row : sums) total += sum(row[0]) + sum(row[1]);
    return total;
}

// Operations a second of all threads, by the processor time of each: others may use the processors, too.
template <typename T>
double product_rate(int64_t rounds, int threads) {
    const double operations = static_cast<double>(rounds) * TILE_ROWS * 2 * Dot<T>::WIDTH * 2;
    double rate = 0;
#pragma omp parallel for num_threads(threads) reduction(+ : rate)
    for (int thread = 0; thread < threads; ++thread) {
        float numbers[2 * TILE_ROWS * LANES] = {};
        asm volatile("" : : "r"(numbers) : "memory");  // the compiler does not know what they are
        const double began = seconds_of_thread();
        const float sum = multiply<T>(numbers, rounds);
        asm volatile("" : : "r"(&sum) : "memory");
        rate += operations / (seconds_of_thread() - began);
    }
    return rate;
}

}  // namespace
}  // namespace octavo

// Reads `bytes` from `from` on, in whole vectors, once.
extern "C" float octavo_read(const float* from, int64_t bytes, int threads) {
    return octavo::read(from, bytes / static_cast<int64_t>(octavo::LANES * sizeof(float)), threads);
}

extern "C" void octavo_product_rate_bfloat16(int64_t rounds, int threads, double* rate) {
    *rate = octavo::product_rate<octavo::Bf16>(rounds, threads);
}
extern "C" void octavo_product_rate_float32(int64_t rounds, int threads, double* rate) {
    *rate = octavo::product_rate<float>(rounds, threads);
}
