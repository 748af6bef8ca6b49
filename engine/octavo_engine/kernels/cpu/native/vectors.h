// The one place that knows the processor: vectors of numbers, for the instructions that this compilation may use.
//
// Every source is compiled once for each target (kernels/cpu/targets.py), and everything else is written with:
//
//   Vec                    LANES floats in one register; + - * / work lane by lane
//   Mask, ALL, lanes()     which lanes count: others are neither read (they are 0 then) nor written
//   load, store            of float and of Bf16, which is rounded to nearest, ties to even, as torch does
//   broadcast, zero, fma, larger, nearest, scaled, absolute, where_negative, select, sum, largest
//   Doubles                LANES doubles, where float32 would lose too much: wide, narrow, +, fma, sum
//   Dot<T>                 products of numbers as they are stored, summed in float32: of Bf16 two at a time. Where a
//                          processor cannot do that, a pair's PARTS are taken one after another, and rows that meet many
//                          columns are widened before (Input)
//   Wide                   a number of bfloat16 that was widened: its products are summed like those of Bf16, not of float
//   TILE_ROWS              rows of a register tile two vectors wide: with its operands it fills the registers
//   PRODUCT_ROWS           the same where one part of the operands is there at a time
//   exponential, silu
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>

namespace octavo {

struct Bf16 {
    uint16_t bits;
};

// Two numbers as one, to be the same pair in each lane.
inline int32_t pair_at(const Bf16* numbers) {
    int32_t pair;
    std::memcpy(&pair, numbers, sizeof pair);
    return pair;
}

// Numbers in a word: what products take at once of each row.
template <typename T>
constexpr int64_t STEP = sizeof(uint32_t) / sizeof(T);

template <typename T>
struct Dot;

}  // namespace octavo

#if defined(__AVX512F__)
#include "vectors_avx512.h"
#elif defined(__AVX2__)
#include "vectors_avx2.h"
#else
#include "vectors_plain.h"
#endif

namespace octavo {

// The lanes that are left of `count` numbers from number `first` on.
inline Mask lanes(int64_t first, int64_t count) { return first_lanes(count - first); }

template <>
struct Dot<float> {
    static constexpr int64_t WIDTH = LANES;  // numbers of an operand
    using Operand = Vec;
    static Operand load(const float* from) { return octavo::load(from); }
    static Operand load(const float* from, int64_t left) { return octavo::load(from, first_lanes(left)); }
    static Operand broadcast(const float* one) { return octavo::broadcast(*one); }
    static Vec add(Vec sum, Operand a, Operand b) { return fma(a, b, sum); }

    static constexpr int PARTS = 1;
    using Input = float;
    static Operand column(const float* from, int) { return load(from); }
    static Operand input(const float* one, int) { return broadcast(one); }
};

struct Wide {
    float number;
};

template <>
struct Dot<Wide> {
    static constexpr int64_t WIDTH = LANES;
    using Operand = Vec;
    static Operand load(const Wide* from) { return octavo::load(&from->number); }
    static Operand load(const Wide* from, int64_t left) { return octavo::load(&from->number, first_lanes(left)); }
    static Operand broadcast(const Wide* one) { return octavo::broadcast(one->number); }
    static Vec add(Vec sum, Operand a, Operand b) { return fma(a, b, sum); }
};

// Numbers that meet many rows are widened once, where a product would widen them each time; a word's first number is the
// one that it takes first.
template <typename T>
constexpr bool WIDENS = Dot<T>::PARTS > 1 && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__;

// e to the x, to about one unit in the last place; 0 for -inf. x = n ln 2 + r, and a polynomial for e to the r.
inline Vec exponential(Vec x) {
    x = larger(broadcast(-104.0f), x);  // the result is 0 from there on; -inf stays out, NaN stays NaN
    const Vec n = nearest(x * broadcast(1.44269504f));
    Vec r = fma(n, broadcast(-0.693145752f), x);
    r = fma(n, broadcast(-1.42860677e-6f), r);
    Vec sum = broadcast(1.0f / 5040);
    for (const float factor : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
        sum = fma(sum, r, broadcast(factor));
    return scaled(sum, n);
}

// x / (1 + e to the -x), with an exponent that cannot overflow
inline Vec silu(Vec x) {
    const Vec one = broadcast(1.0f), small = exponential(zero() - absolute(x));
    return x * where_negative(x, small, one) / (one + small);
}

}  // namespace octavo
