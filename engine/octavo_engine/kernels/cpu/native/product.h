// The products of a layer, whatever their weights are packed as.
#pragma once

#include "kernels.h"
#include "quantized.h"

namespace octavo {

enum class Kind : int64_t { PLAIN, QUANTIZED, JOINED };

// Python makes it (kernels/cpu/layers.py has the same fields).
struct Product {
    Kind kind;
    const void* weight;  // Weight, Quantized, or the Products whose outputs stand side by side
    int64_t parts;       // of a joined one
    int64_t outputs;
};

// x [rows][inputs], with `stride` numbers from row to row.
template <typename T>
void multiply(Team team, const Product& product, const T* x, int64_t stride, int64_t rows, const Finish<T>& to) {
    switch (product.kind) {
        case Kind::PLAIN:
            return linear(team, *static_cast<const Weight*>(product.weight), x, stride, rows, to);
        case Kind::QUANTIZED:
            return quantized(team, *static_cast<const Quantized*>(product.weight), x, stride, rows, to);
        case Kind::JOINED: {
            Finish<T> rest = to;
            const auto* parts = static_cast<const Product*>(product.weight);
            for (int64_t part = 0; part < product.parts; ++part) {
                multiply(team, parts[part], x, stride, rows, rest);
                if (rest.residual) rest.residual += parts[part].outputs;
                if (rest.wide_out) rest.wide_out += parts[part].outputs;
                if (rest.out) rest.out += parts[part].outputs;
            }
        }
    }
}

}  // namespace octavo
