// Sixteen lanes: AVX-512 (F, BW, DQ, VL), with the bfloat16 products of AVX512_BF16 or without them.
#pragma once

#include <immintrin.h>

namespace octavo {

using Vec = __m512;
using Mask = __mmask16;

constexpr int64_t LANES = 16;
constexpr int64_t TILE_ROWS = 12;  // 24 sums; two weights and what they meet take up to six of the other eight
constexpr int64_t PRODUCT_ROWS = TILE_ROWS;
constexpr Mask ALL = 0xffff;

inline Mask first_lanes(int64_t count) {
    return count >= LANES ? ALL : count <= 0 ? 0 : static_cast<Mask>((1u << count) - 1);
}

inline Vec zero() { return _mm512_setzero_ps(); }
inline Vec broadcast(float value) { return _mm512_set1_ps(value); }

inline Vec load(const float* from, Mask mask = ALL) { return _mm512_maskz_loadu_ps(mask, from); }
inline void store(float* to, Vec values, Mask mask = ALL) { _mm512_mask_storeu_ps(to, mask, values); }

inline Vec load(const Bf16* from, Mask mask = ALL) {
    const __m512i numbers = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(numbers, 16));
}

inline __m256i rounded(Vec values) {
#ifdef __AVX512BF16__
    return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(values));
#else
    const __m512i bits = _mm512_castps_si512(values);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));  // NaN must not become infinity
    const __mmask16 nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(up, nan, quiet), 16));
#endif
}

inline void store(Bf16* to, Vec values, Mask mask = ALL) { _mm256_mask_storeu_epi16(to, mask, rounded(values)); }

inline Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }  // a * b + c
inline Vec larger(Vec a, Vec b) { return _mm512_max_ps(a, b); }           // b, where either is NaN
inline Vec nearest(Vec x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Vec scaled(Vec x, Vec exponent) { return _mm512_scalef_ps(x, exponent); }  // x * 2 to the whole exponent
inline Vec absolute(Vec x) { return _mm512_abs_ps(x); }
inline Vec select(Mask mask, Vec there, Vec elsewhere) { return _mm512_mask_mov_ps(elsewhere, mask, there); }
inline Vec where_negative(Vec x, Vec there, Vec elsewhere) {
    return select(_mm512_cmp_ps_mask(x, zero(), _CMP_LT_OQ), there, elsewhere);
}
inline float sum(Vec x) { return _mm512_reduce_add_ps(x); }
inline float largest(Vec x) { return _mm512_reduce_max_ps(x); }

struct Doubles {
    __m512d low, high;
};

inline Doubles wide(Vec x) {
    return {_mm512_cvtps_pd(_mm512_castps512_ps256(x)), _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1))};
}
inline Vec narrow(Doubles x) {
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(x.low)), _mm512_cvtpd_ps(x.high), 1);
}
inline Doubles operator+(Doubles a, Doubles b) { return {a.low + b.low, a.high + b.high}; }
inline Doubles fma(Doubles a, Doubles b, Doubles c) {
    return {_mm512_fmadd_pd(a.low, b.low, c.low), _mm512_fmadd_pd(a.high, b.high, c.high)};
}
inline double sum(Doubles x) { return _mm512_reduce_add_pd(x.low + x.high); }

#ifdef __AVX512BF16__

template <>
struct Dot<Bf16> {
    static constexpr int64_t WIDTH = 2 * LANES;
    using Operand = __m512bh;
    static Operand load(const Bf16* from) { return reinterpret_cast<__m512bh>(_mm512_loadu_si512(from)); }
    static Operand load(const Bf16* from, int64_t left) {
        const __mmask32 mask = left >= WIDTH ? 0xffffffffu : (1u << left) - 1;
        return reinterpret_cast<__m512bh>(_mm512_maskz_loadu_epi16(mask, from));
    }
    static Operand broadcast(const Bf16* pair) {
        return reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair_at(pair)));
    }
    static Vec add(Vec sum, Operand a, Operand b) { return _mm512_dpbf16_ps(sum, a, b); }

    static constexpr int PARTS = 1;
    using Input = Bf16;
    static Operand column(const Bf16* from, int) { return load(from); }
    static Operand input(const Bf16* pair, int) { return broadcast(pair); }
};

#else

template <>
struct Dot<Bf16> {
    static constexpr int64_t WIDTH = 2 * LANES;
    struct Operand {
        Vec even, odd;
    };
    static Operand load(const Bf16* from) { return apart(_mm512_loadu_si512(from)); }
    static Operand load(const Bf16* from, int64_t left) {
        const __mmask32 mask = left >= WIDTH ? 0xffffffffu : (1u << left) - 1;
        return apart(_mm512_maskz_loadu_epi16(mask, from));
    }
    static Operand broadcast(const Bf16* pair) {
        return apart(_mm512_set1_epi32(pair_at(pair)));
    }
    static Vec add(Vec sum, Operand a, Operand b) { return fma(a.odd, b.odd, fma(a.even, b.even, sum)); }

    static constexpr int PARTS = 2;
    using Input = float;
    static Vec column(const Bf16* from, int part) {
        const __m512i pairs = _mm512_loadu_si512(from);
        return part ? odd(pairs) : even(pairs);
    }
    static Vec input(const float* pair, int part) { return octavo::broadcast(pair[part]); }
    static Vec add(Vec sum, Vec column, Vec input) { return fma(column, input, sum); }

private:
    static Vec even(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
    static Vec odd(__m512i pairs) {
        return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int32_t>(0xffff0000))));
    }
    static Operand apart(__m512i pairs) { return {even(pairs), odd(pairs)}; }
};

#endif

}  // namespace octavo
