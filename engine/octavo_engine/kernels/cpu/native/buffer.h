// Memory that begins at a cache line, and only grows: it is used again by every layer. Its contents are not kept.
#pragma once

#include <cstdint>
#include <memory>
#include <new>

namespace octavo {

template <typename T>
class Buffer {
    static constexpr std::align_val_t LINE{64};
    struct Free {
        void operator()(T* memory) const { operator delete(memory, LINE); }
    };
    std::unique_ptr<T, Free> memory;
    int64_t room = 0;

public:
    // Where `count` numbers have room.
    T* fit(int64_t count) {
        if (count > room) {
            memory.reset(static_cast<T*>(operator new(count * sizeof(T), LINE)));
            room = count;
        }
        return memory.get();
    }
};

}  // namespace octavo
