//! A `libcuda.so` without a GPU: real memory, real time, no device.
//!
//! It carries out streams as late as the rules permit, and in any order: an operation is carried out only when the host
//! asks for an event or waits for a stream, of a stream that a seed chooses. What an operation writes holds something else
//! from the call on. So a batch that misses an order gets wrong answers. Kernels are known by name, and last as long as
//! their header says.
//!
//! `BATON_FAKE_CUDA` plants faults, separated by commas: `no-device`, `old` (CUDA 11.8), `memory=BYTES` (of each device),
//! `fault=N` (the Nth launch meets an illegal address, or the error that `fault-code=CODE` names), `devices=N`, `seed=N`,
//! `hot` (the clocks are held down, and another process computes), `no-root` (clocks cannot be locked),
//! `no-dma-buf` (the device says that its memory cannot be given out), `dma-buf-code=CODE` (it says that it can, and the call
//! is refused with that error).
//!
//! It is a fake `libnvidia-ml.so` as well ([`nvml`]). `CUDA_VISIBLE_DEVICES` counts as for the driver.
#![expect(unsafe_code, reason = "exports C functions and reads memory by address")]
#![expect(clippy::missing_safety_doc, reason = "as the CUDA driver documents its functions")]

mod device;
pub mod exports;
pub mod nvml;
