// Sixteen numbers at a time: loads and stores of the two types that weights and cache have, and what AVX-512 lacks.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>

namespace octavo {

struct Bf16 {
    uint16_t bits;
};

constexpr int64_t LANES = 16;

// The lanes that are left of `count` numbers from number `first` on.
inline __mmask16 lanes(int64_t first, int64_t count) {
    const int64_t left = count - first;
    return left >= LANES ? 0xffff : left <= 0 ? 0 : static_cast<__mmask16>((1u << left) - 1);
}

inline __m512 load(const float* from, __mmask16 mask = 0xffff) { return _mm512_maskz_loadu_ps(mask, from); }

inline __m512 load(const Bf16* from, __mmask16 mask = 0xffff) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

inline void store(float* to, __m512 values, __mmask16 mask = 0xffff) { _mm512_mask_storeu_ps(to, mask, values); }

inline void store(Bf16* to, __m512 values, __mmask16 mask = 0xffff) {
    _mm256_mask_storeu_epi16(to, mask, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(values)));
}

// Products of numbers as they are stored, summed in float32: of bfloat16, two at a time.
template <typename T>
struct Dot;

template <>
struct Dot<float> {
    static constexpr int64_t WIDTH = LANES;
    static __m512 load(const float* from, int64_t left) { return octavo::load(from, lanes(0, left)); }
    static __m512 add(__m512 sum, __m512 a, __m512 b) { return _mm512_fmadd_ps(a, b, sum); }
};

template <>
struct Dot<Bf16> {
    static constexpr int64_t WIDTH = 2 * LANES;
    static __m512bh load(const Bf16* from, int64_t left) {
        const __mmask32 mask = left >= WIDTH ? 0xffffffffu : (1u << left) - 1;
        return reinterpret_cast<__m512bh>(_mm512_maskz_loadu_epi16(mask, from));
    }
    static __m512 add(__m512 sum, __m512bh a, __m512bh b) { return _mm512_dpbf16_ps(sum, a, b); }
};

// e to the x, to about one unit in the last place; 0 for -inf. x = n ln 2 + r, and a polynomial for e to the r.
inline __m512 exponential(__m512 x) {
    x = _mm512_max_ps(_mm512_set1_ps(-104.0f), x);  // the result is 0 from there on; -inf stays out, NaN stays NaN
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693145752f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(1.42860677e-6f), r);
    __m512 sum = _mm512_set1_ps(1.0f / 5040);
    for (const float factor : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
        sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(factor));
    return _mm512_scalef_ps(sum, n);
}

// x / (1 + e to the -x), with an exponent that cannot overflow
inline __m512 silu(__m512 x) {
    const __m512 one = _mm512_set1_ps(1.0f), small = exponential(_mm512_sub_ps(_mm512_setzero_ps(), _mm512_abs_ps(x)));
    const __mmask16 negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
    const __m512 share = _mm512_mask_mov_ps(one, negative, small);
    return _mm512_div_ps(_mm512_mul_ps(x, share), _mm512_add_ps(one, small));
}

}  // namespace octavo
