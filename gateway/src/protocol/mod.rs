//! The Open Inference Protocol v2, apart from sockets: requests in, answers out, deadlines and outcomes between them.
//!
//! Nothing here reads a clock, waits or owns a connection.

pub mod deadline;
pub mod describe;
pub mod fill;
pub mod image;
mod json;
pub mod memory;
pub mod numbers;
pub mod problem;
pub mod render;
pub mod request;
pub mod route;
