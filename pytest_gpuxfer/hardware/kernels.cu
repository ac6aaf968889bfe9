// The kernels that we need on a GPU; their PTX is made by tools/build_ptx.py.
// The pattern is that of pytest_gpuxfer/model/pattern.py: word i = mix((i + offset) % PERIOD_WORDS).

typedef unsigned int u32;
typedef unsigned long long u64;

#define PERIOD_WORDS 131101ull

// What compare_pattern finds; the host begins it with {0, ~0, 0}.
struct Result {
    u64 wrong_words;
    u64 first_index;
    u64 last_index;
};

static __device__ __forceinline__ u64 mix(u64 index) {
    u64 word = index * 0x9E3779B97F4A7C15ull + 0x9E3779B97F4A7C15ull;
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9ull;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EBull;
    return word ^ (word >> 31);
}

static __device__ __forceinline__ u64 thread_index() {
    return (u64)blockIdx.x * blockDim.x + threadIdx.x;
}

static __device__ __forceinline__ u64 thread_count() {
    return (u64)gridDim.x * blockDim.x;
}

// The place in the period, carried from word to word: a modulo each would cost more than the store.
static __device__ __forceinline__ u64 advance(u64 place, u64 step) {
    place += step;
    return place < PERIOD_WORDS ? place : place - PERIOD_WORDS;
}

extern "C" __global__ void fill_pattern(u64 *destination, u64 words, u64 offset) {
    u64 stride = thread_count(), step = stride % PERIOD_WORDS;
    u64 place = (thread_index() + offset) % PERIOD_WORDS;
    for (u64 i = thread_index(); i < words; i += stride, place = advance(place, step))
        destination[i] = mix(place);
}

extern "C" __global__ void fill_word(u64 *destination, u64 words, u64 word) {
    for (u64 i = thread_index(); i < words; i += thread_count())
        destination[i] = word;
}

extern "C" __global__ void compare_pattern(const u64 *source, u64 words, u64 offset,
                                           Result *result) {
    u64 stride = thread_count(), step = stride % PERIOD_WORDS;
    u64 place = (thread_index() + offset) % PERIOD_WORDS;
    u64 wrong = 0, first = ~0ull, last = 0;
    for (u64 i = thread_index(); i < words; i += stride, place = advance(place, step)) {
        if (source[i] == mix(place))
            continue;
        if (wrong++ == 0)
            first = i;
        last = i;
    }
    if (wrong == 0)
        return;
    atomicAdd(&result->wrong_words, wrong);
    atomicMin(&result->first_index, first);
    atomicMax(&result->last_index, last);
}

static __device__ __forceinline__ u64 now_ns() {
    u64 time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

// One thread that holds its stream until the host sets *open. The limit keeps a host that died, or
// that waits for what is behind the gate, from holding the GPU for ever.
extern "C" __global__ void gate(volatile u32 *open, volatile u32 *expired, u64 limit_ns) {
    u64 start = now_ns();
    while (*open == 0) {
        if (now_ns() - start > limit_ns) {
            *expired = 1;
            return;
        }
    }
}

// 16 bytes a load, all of a turn's loads before its stores: what is in flight is what hides the
// latency of a link. A block's turn is UNROLL times its threads; the last one is cut short.
#define UNROLL 8

extern "C" __global__ void __launch_bounds__(1024)
copy(uint4 *__restrict__ destination, const uint4 *__restrict__ source, u64 count) {
    u64 width = blockDim.x, turn = UNROLL * width;
    for (u64 start = blockIdx.x * turn; start < count; start += gridDim.x * turn) {
        u64 first = start + threadIdx.x;
        uint4 held[UNROLL];
#pragma unroll
        for (int k = 0; k < UNROLL; k++)
            if (first + k * width < count)
                held[k] = __ldcs(source + first + k * width);
#pragma unroll
        for (int k = 0; k < UNROLL; k++)
            if (first + k * width < count)
                __stcs(destination + first + k * width, held[k]);
    }
}

// A chain through memory: word 0 of each line holds the offset in bytes of the line after it.
#define LINE_BYTES 128

static __device__ __forceinline__ u64 *word_at(u64 address) {
    return (u64 *)address;
}

// The order is steps of `step` lines, which has no factor in common with `lines`.
extern "C" __global__ void write_chain(u64 address, u64 lines, u64 step) {
    for (u64 i = thread_index(); i < lines; i += thread_count())
        *word_at(address + i * LINE_BYTES) = (i + step) % lines * LINE_BYTES;
}

// relaxed.sys, or L1 would answer.
extern "C" __global__ void chase_chain(u64 address, u64 hops, u64 *arrived) {
    u64 offset = 0;
#pragma unroll 4
    for (u64 i = 0; i < hops; i++)
        asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(offset) : "l"(address + offset));
    *arrived = offset;
}

extern "C" __global__ void handshake(volatile u64 *own, volatile u64 *peer, u64 rounds, u64 leads,
                                     u64 limit_ns) {
    u64 start = now_ns(), answered = 0;
    while (answered < rounds) {
        u64 round = answered + 1;
        if (leads) {
            *peer = round;
            __threadfence_system();
        }
        while (*own < round)
            if (now_ns() - start > limit_ns)
                goto end;
        if (!leads) {
            *peer = round;
            __threadfence_system();
        }
        answered = round;
    }
end:
    own[1] = answered;
}

extern "C" __global__ void atomic_add(u64 *word, u64 times) {
    for (u64 i = thread_index(); i < times; i += thread_count())
        atomicAdd_system(word, 1);
}
