// Answers each row of a batch with its CRC-32 (IEEE), and takes as long as the batch should.
//
// One block of 256 threads for each row. A thread takes the remainder of one piece of the row, shifts it by the bytes that
// follow the piece, and adds it: remainders of polynomials over GF(2) add up by XOR. A block stores its answer when the
// batch's time is over, so that a copy of the answers that does not wait for the kernel takes something else.
//
// header: time of the batch in ns (low word, high word), bytes from one row to the next, unused, then each row's length.
//
// `kernels/make-ptx.py` makes the PTX. With -DBATON_HOST it is C, and a test runs it on the CPU.

#define THREADS 256u
#define POLYNOMIAL 0xedb88320u // bit 31 is x^0
#define ONE 0x80000000u
#define X8 0x00800000u

#ifdef BATON_HOST
#define DEVICE static
#define SHARED static
#define BARRIER
#define EACH_THREAD for (u32 thread = 0; thread < THREADS; thread++)
#define XOR_INTO(sum, value) ((sum) ^= (value))
typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
DEVICE u64 now_ns(void) { return 0; }
#else
#define DEVICE static __device__ __forceinline__
#define SHARED __shared__
#define BARRIER __syncthreads()
#define EACH_THREAD for (u32 thread = threadIdx.x, once = 1; once; once = 0)
#define XOR_INTO(sum, value) atomicXor(&(sum), (value))
typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
DEVICE u64 now_ns(void) {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}
#endif

// The product of two remainders.
DEVICE u32 product(u32 a, u32 b) {
    u32 sum = 0;
    for (u32 bit = ONE; bit != 0; bit >>= 1) {
        if (a & bit) sum ^= b;
        b = (b >> 1) ^ ((b & 1) ? POLYNOMIAL : 0);
    }
    return sum;
}

// x to the power of eight times `bytes`.
DEVICE u32 shift_of(u32 bytes) {
    u32 square = X8, power = ONE;
    for (; bytes != 0; bytes >>= 1) {
        if (bytes & 1) power = product(power, square);
        square = product(square, square);
    }
    return power;
}

#ifdef BATON_HOST
static void checksum_rows(const u8 *rows, const u32 *header, u64 *answers, u32 row) {
#else
extern "C" __global__ void __launch_bounds__(256) checksum_rows(const u8 *rows, const u32 *header, u64 *answers) {
    const u32 row = blockIdx.x;
#endif
    const u64 began = now_ns();
    const u64 time_ns = ((u64)header[1] << 32) | header[0];
    const u32 bytes = header[4 + row];
    const u8 *input = rows + (u64)row * header[2];
    SHARED u32 table[THREADS];
    SHARED u32 sum;
    EACH_THREAD {
        u32 entry = thread;
        for (int bit = 0; bit < 8; bit++) entry = (entry >> 1) ^ ((entry & 1) ? POLYNOMIAL : 0);
        table[thread] = entry;
        if (thread == 0) sum = 0;
    }
    BARRIER;
    EACH_THREAD {
        const u32 piece = bytes / THREADS + 1;
        const u32 from = thread * piece < bytes ? thread * piece : bytes;
        const u32 to = from + piece < bytes ? from + piece : bytes;
        // The first four bytes are taken inverted: the same as beginning with all bits set.
        u32 remainder = thread == 0 ? 0xffffffffu : 0;
        for (u32 at = from; at < to; at++) remainder = table[(remainder ^ input[at]) & 0xff] ^ (remainder >> 8);
        if (remainder != 0) XOR_INTO(sum, product(remainder, shift_of(bytes - to)));
    }
    BARRIER;
    EACH_THREAD {
        if (thread == 0) {
            // Ends even if the timer stands still: a look at it takes more than a nanosecond.
            for (u64 looks = 0; looks < time_ns && now_ns() - began < time_ns; looks++) {}
            answers[row] = sum ^ 0xffffffffu;
        }
    }
}

#ifdef BATON_HOST
// In: words of a header for as many rows as the argument says, then the rows. Out: an answer in each line.
#include <stdio.h>
#include <stdlib.h>
int main(int count, char **arguments) {
    static u32 header[4 + 64];
    const u32 rows = count > 1 ? (u32)atoi(arguments[1]) : 0;
    if (rows > 64 || fread(header, 4, 4 + rows, stdin) != 4 + rows) return 1;
    u8 *input = (u8 *)malloc((size_t)rows * header[2] + 1);
    if (fread(input, 1, (size_t)rows * header[2], stdin) != (size_t)rows * header[2]) return 1;
    for (u32 row = 0; row < rows; row++) {
        u64 answers[64];
        checksum_rows(input, header, answers, row);
        printf("%llu\n", answers[row]);
    }
    return 0;
}
#endif
