// Eight lanes: AVX2 with FMA. There is no masked access to 16-bit numbers, so a mask is a count, and what is not whole
// goes through a buffer.
#pragma once

#include <immintrin.h>

namespace octavo {

using Vec = __m256;

constexpr int64_t LANES = 8;
constexpr int64_t TILE_ROWS = 4;  // eight sums, four halves of weights, two of what they meet; ten sums would spill
constexpr int64_t PRODUCT_ROWS = 6;  // twelve sums, two halves, and a number that they meet

struct Mask {
    int64_t count;
};
constexpr Mask ALL{LANES};

inline Mask first_lanes(int64_t count) { return {count >= LANES ? LANES : count <= 0 ? 0 : count}; }

inline Vec zero() { return _mm256_setzero_ps(); }
inline Vec broadcast(float value) { return _mm256_set1_ps(value); }

inline __m256i bits_of(Mask mask) {
    const __m256i numbers = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(mask.count)), numbers);
}

inline Vec load(const float* from, Mask mask = ALL) {
    return mask.count == LANES ? _mm256_loadu_ps(from) : _mm256_maskload_ps(from, bits_of(mask));
}
inline void store(float* to, Vec values, Mask mask = ALL) {
    if (mask.count == LANES) return _mm256_storeu_ps(to, values);
    _mm256_maskstore_ps(to, bits_of(mask), values);
}

inline Vec load(const Bf16* from, Mask mask = ALL) {
    __m128i numbers = _mm_setzero_si128();
    if (mask.count == LANES)
        numbers = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    else
        std::memcpy(&numbers, from, mask.count * sizeof(Bf16));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(numbers), 16));
}

inline __m128i rounded(Vec values) {
    const __m256i bits = _mm256_castps_si256(values);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));  // NaN must not become infinity
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
    const __m256i halves = _mm256_srli_epi32(_mm256_blendv_epi8(up, quiet, nan), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
}

inline void store(Bf16* to, Vec values, Mask mask = ALL) {
    const __m128i numbers = rounded(values);
    if (mask.count == LANES) return _mm_storeu_si128(reinterpret_cast<__m128i*>(to), numbers);
    std::memcpy(to, &numbers, mask.count * sizeof(Bf16));
}

inline Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }  // a * b + c
inline Vec larger(Vec a, Vec b) { return _mm256_max_ps(a, b); }           // b, where either is NaN
inline Vec nearest(Vec x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Vec absolute(Vec x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
inline Vec select(Mask mask, Vec there, Vec elsewhere) {
    return _mm256_blendv_ps(elsewhere, there, _mm256_castsi256_ps(bits_of(mask)));
}
inline Vec where_negative(Vec x, Vec there, Vec elsewhere) {
    return _mm256_blendv_ps(elsewhere, there, _mm256_cmp_ps(x, zero(), _CMP_LT_OQ));
}

// x * 2 to the whole exponent, in two factors: the whole may lie beyond the exponents of one number.
inline Vec scaled(Vec x, Vec exponent) {
    const __m256i whole = _mm256_cvtps_epi32(_mm256_max_ps(broadcast(-200), _mm256_min_ps(broadcast(200), exponent)));
    const __m256i half = _mm256_srai_epi32(whole, 1);
    const auto power = [](__m256i n) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
    };
    return x * power(half) * power(_mm256_sub_epi32(whole, half));
}

inline float sum(Vec x) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float largest(Vec x) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

struct Doubles {
    __m256d low, high;
};

inline Doubles wide(Vec x) {
    return {_mm256_cvtps_pd(_mm256_castps256_ps128(x)), _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1))};
}
inline Vec narrow(Doubles x) { return _mm256_set_m128(_mm256_cvtpd_ps(x.high), _mm256_cvtpd_ps(x.low)); }
inline Doubles operator+(Doubles a, Doubles b) { return {a.low + b.low, a.high + b.high}; }
inline Doubles fma(Doubles a, Doubles b, Doubles c) {
    return {_mm256_fmadd_pd(a.low, b.low, c.low), _mm256_fmadd_pd(a.high, b.high, c.high)};
}
inline double sum(Doubles x) {
    const __m256d all = x.low + x.high;
    return (all[0] + all[1]) + (all[2] + all[3]);
}

template <>
struct Dot<Bf16> {
    static constexpr int64_t WIDTH = 2 * LANES;
    struct Operand {
        Vec even, odd;
    };
    static Operand load(const Bf16* from) {
        return apart(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    }
    static Operand load(const Bf16* from, int64_t left) {
        if (left >= WIDTH) return load(from);
        __m256i pairs = _mm256_setzero_si256();
        std::memcpy(&pairs, from, left * sizeof(Bf16));
        return apart(pairs);
    }
    static Operand broadcast(const Bf16* pair) {
        return apart(_mm256_set1_epi32(pair_at(pair)));
    }
    static Vec add(Vec sum, Operand a, Operand b) { return fma(a.odd, b.odd, fma(a.even, b.even, sum)); }

    static constexpr int PARTS = 2;
    using Input = float;
    static Vec column(const Bf16* from, int part) {
        const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
        return part ? odd(pairs) : even(pairs);
    }
    static Vec input(const float* pair, int part) { return octavo::broadcast(pair[part]); }
    static Vec add(Vec sum, Vec column, Vec input) { return fma(column, input, sum); }

private:
    static Vec even(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
    static Vec odd(__m256i pairs) {
        return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int32_t>(0xffff0000))));
    }
    static Operand apart(__m256i pairs) { return {even(pairs), odd(pairs)}; }
};

}  // namespace octavo
