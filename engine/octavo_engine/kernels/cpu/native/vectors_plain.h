// Four lanes in the compiler's own vectors, for any processor: SSE2 on x86, NEON on ARM, and loops elsewhere.
#pragma once

#include <algorithm>

namespace octavo {

constexpr int64_t LANES = 4;
constexpr int64_t TILE_ROWS = 4;  // eight sums, four halves of weights, two of what they meet: sixteen registers
constexpr int64_t PRODUCT_ROWS = TILE_ROWS;

typedef float Vec __attribute__((vector_size(16)));
typedef int32_t Ints __attribute__((vector_size(16)));
typedef double Doubles __attribute__((vector_size(32)));

struct Mask {
    int64_t count;
};
constexpr Mask ALL{LANES};

inline Mask first_lanes(int64_t count) { return {count >= LANES ? LANES : count <= 0 ? 0 : count}; }

inline Vec zero() { return Vec{}; }
inline Vec broadcast(float value) { return Vec{value, value, value, value}; }

template <typename Same, typename Vector>
Same as(Vector of) {
    static_assert(sizeof(Same) == sizeof(Vector));
    return reinterpret_cast<Same>(of);
}

inline Vec load(const float* from, Mask mask = ALL) {
    Vec values{};
    if (mask.count == LANES)
        std::memcpy(&values, from, sizeof values);
    else
        std::memcpy(&values, from, mask.count * sizeof(float));
    return values;
}
inline void store(float* to, Vec values, Mask mask = ALL) {
    if (mask.count == LANES)
        std::memcpy(to, &values, sizeof values);
    else
        std::memcpy(to, &values, mask.count * sizeof(float));
}

inline Vec load(const Bf16* from, Mask mask = ALL) {
    uint16_t numbers[LANES] = {};
    std::memcpy(numbers, from, mask.count * sizeof(Bf16));
    return as<Vec>(Ints{numbers[0], numbers[1], numbers[2], numbers[3]} << 16);
}

inline void store(Bf16* to, Vec values, Mask mask = ALL) {
    typedef uint32_t Words __attribute__((vector_size(16)));
    const Words bits = as<Words>(values), up = bits + ((bits >> 16) & 1) + 0x7fff;
    const Words halves = as<Words>(values == values ? as<Ints>(up) : as<Ints>(bits | 0x400000)) >> 16;  // NaN stays NaN
    for (int64_t lane = 0; lane < mask.count; ++lane) to[lane].bits = static_cast<uint16_t>(halves[lane]);
}

inline Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
inline Vec larger(Vec a, Vec b) { return a > b ? a : b; }  // b, where either is NaN
inline Vec absolute(Vec x) { return as<Vec>(as<Ints>(x) & 0x7fffffff); }
inline Vec where_negative(Vec x, Vec there, Vec elsewhere) { return x < zero() ? there : elsewhere; }
inline Vec select(Mask mask, Vec there, Vec elsewhere) {
    const int32_t count = static_cast<int32_t>(mask.count);
    return Ints{0, 1, 2, 3} < Ints{count, count, count, count} ? there : elsewhere;
}

// To whole numbers of at most 22 bits, which is all that is asked here: what lies behind the point is lost in the sum.
inline Vec nearest(Vec x) {
    const Vec large = broadcast(12582912.0f);  // 1.5 * 2 to the 23
    return (x + large) - large;
}

// x * 2 to the whole exponent, in two factors: the whole may lie beyond the exponents of one number.
inline Vec scaled(Vec x, Vec exponent) {
    const Vec low = broadcast(-200.0f), high = broadcast(200.0f);
    const Ints whole = __builtin_convertvector(exponent > low ? (exponent < high ? exponent : high) : low, Ints);
    const Ints half = whole >> 1;
    return x * as<Vec>((half + 127) << 23) * as<Vec>((whole - half + 127) << 23);
}

inline float sum(Vec x) { return (x[0] + x[2]) + (x[1] + x[3]); }
inline float largest(Vec x) { return std::max(std::max(x[0], x[2]), std::max(x[1], x[3])); }

// The sum of each of 4 vectors, as one vector.

inline Doubles wide(Vec x) { return __builtin_convertvector(x, Doubles); }
inline Vec narrow(Doubles x) { return __builtin_convertvector(x, Vec); }
inline Doubles fma(Doubles a, Doubles b, Doubles c) { return a * b + c; }
inline double sum(Doubles x) { return (x[0] + x[2]) + (x[1] + x[3]); }

template <>
struct Dot<Bf16> {
    static constexpr int64_t WIDTH = 2 * LANES;
    struct Operand {
        Vec first, second;  // the halves of each word, in the order in which this processor's words have them
    };
    static Operand load(const Bf16* from) { return load(from, WIDTH); }
    static Operand load(const Bf16* from, int64_t left) {
        Ints pairs{};
        if (left >= WIDTH)
            std::memcpy(&pairs, from, sizeof pairs);
        else
            std::memcpy(&pairs, from, left * sizeof(Bf16));
        return apart(pairs);
    }
    static Operand broadcast(const Bf16* pair) {
        return apart(Ints{} + pair_at(pair));
    }
    static Vec add(Vec sum, Operand a, Operand b) { return fma(a.second, b.second, fma(a.first, b.first, sum)); }

    static constexpr int PARTS = 2;
    using Input = float;
    static Vec column(const Bf16* from, int part) {
        Ints pairs;
        std::memcpy(&pairs, from, sizeof pairs);
        return part ? second(pairs) : first(pairs);
    }
    static Vec input(const float* pair, int part) { return octavo::broadcast(pair[LOW_FIRST ? part : 1 - part]); }
    static Vec add(Vec sum, Vec column, Vec input) { return fma(column, input, sum); }

private:
    static constexpr bool LOW_FIRST = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__;
    static Vec first(Ints pairs) { return as<Vec>(pairs << 16); }
    static Vec second(Ints pairs) { return as<Vec>(pairs & static_cast<int32_t>(0xffff0000)); }
    static Operand apart(Ints pairs) { return {first(pairs), second(pairs)}; }
};

}  // namespace octavo
