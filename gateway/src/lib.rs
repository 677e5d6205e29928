//! `baton gateway`: the Open Inference Protocol v2 over HTTP and gRPC, for clients that are not linked with the client library.
//!
//! A gateway is an application of `baton-client`. It writes the tensors of a request into slots of its slabs, submits a
//! task for each row with the request's deadline, and answers when all tasks have their outcomes. `docs/gateway.md` says
//! what its clients can ask for.
//!
//! [`protocol`] is everything that needs no socket. `http` reads requests and writes answers; `grpc` does so for gRPC's calls, on
//! the same connections. [`Gateway`] is the thread that
//! serves connections.
#![forbid(unsafe_code)]

mod accept;
mod access;
mod counters;
mod driving;
mod gateway;
mod grpc;
mod http;
mod image;
mod infer;
mod lag;
mod limits;
mod memory;
pub mod protocol;
mod quota;
mod repository;
mod statistics;
mod tls;

pub use access::{Token, TokenError};
pub use counters::described;
pub use gateway::{Gateway, GatewayConfig, GatewayError};
pub use limits::Limits;
pub use protocol::image::ImageStep;
pub use repository::{Connect, Repository};
pub use tls::{TlsError, TlsFiles};
