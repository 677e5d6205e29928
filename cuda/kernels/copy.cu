// Copies the first bytes of each row from one place of the device to another, at other distances. One launch does it, which
// costs the host less than the driver's own copies, and it begins when the kernel before it has ended.
//
// Rows by blockIdx.y. Each thread copies as wide as all addresses allow.
//
// `kernels/make-ptx.py` makes the PTX. With -DBATON_HOST it is C, and a test runs it on the CPU.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifdef BATON_HOST
typedef struct { u64 low, high; } wide;
#define KERNEL static
#define ROW row
#define FIRST 0
#define STEP 1
#define MORE , u64 row
#else
typedef uint4 wide;
#define KERNEL extern "C" __global__ void __launch_bounds__(256)
#define ROW blockIdx.y
#define FIRST ((u64)blockIdx.x * blockDim.x + threadIdx.x)
#define STEP ((u64)gridDim.x * blockDim.x)
#define MORE
#endif

#ifdef BATON_HOST
KERNEL void copy_rows(u64 to, u64 to_stride, u64 from, u64 from_stride, u64 bytes MORE) {
#else
KERNEL copy_rows(u64 to, u64 to_stride, u64 from, u64 from_stride, u64 bytes) {
#endif
    const u64 source = from + ROW * from_stride, target = to + ROW * to_stride;
    u64 done = 0;
    if (((source | target) & 15) == 0) {
        for (u64 at = FIRST; at < bytes / 16; at += STEP) ((wide *)target)[at] = ((const wide *)source)[at];
        done = bytes / 16 * 16;
    } else if (((source | target) & 3) == 0) {
        for (u64 at = FIRST; at < bytes / 4; at += STEP) ((u32 *)target)[at] = ((const u32 *)source)[at];
        done = bytes / 4 * 4;
    }
    for (u64 at = done + FIRST; at < bytes; at += STEP) ((u8 *)target)[at] = ((const u8 *)source)[at];
}

#ifdef BATON_HOST
// In: bytes, rows, the distances of both sides, where each begins, then the source. Out: the target, poisoned before.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(void) {
    u64 head[6];
    if (fread(head, 8, 6, stdin) != 6) return 1;
    const u64 bytes = head[0], rows = head[1], from_bytes = rows * head[2] + 16, to_bytes = rows * head[3] + 16;
    u8 *source = (u8 *)aligned_alloc(64, from_bytes / 64 * 64 + 64), *target = (u8 *)aligned_alloc(64, to_bytes / 64 * 64 + 64);
    if (fread(source, 1, from_bytes, stdin) != from_bytes) return 1;
    memset(target, 0xcd, to_bytes);
    for (u64 row = 0; row < rows; row++) copy_rows((u64)target + head[5], head[3], (u64)source + head[4], head[2], bytes, row);
    return fwrite(target, 1, to_bytes, stdout) != to_bytes;
}
#endif
