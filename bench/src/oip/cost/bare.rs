//! The bare server: hyper reads a request's body and answers; tonic decodes a gRPC message and encodes an answer. Nothing becomes of
//! either. One thread, as the gateway beside it.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Either, Full};
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use prost::Message;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime;
use tonic::Status;
use tonic::server::{Grpc, UnaryService};
use tonic_prost::ProstCodec;

use super::super::messages::{InferAnswer, Tensor};

/// As long as the gateway's answer to a request over HTTP.
const ANSWER: &[u8] = br#"{"model_name":"m256","model_version":"1","outputs":[{"name":"output","datatype":"UINT8","shape":[1, 8],"parameters":{"binary_data_size":8}}]}01234567"#;
/// Windows of HTTP/2, as the gateway has them.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
/// tonic's own bound is 4 MiB.
const MESSAGE_MAX: usize = 64 << 20;

/// Serves until the first connection ends, which is its user's. `listening` is called with its address.
///
/// # Errors
/// No socket.
pub fn serve_bare(listening: impl FnOnce(SocketAddr) -> io::Result<()>) -> io::Result<()> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        listening(listener.local_addr()?)?;
        let (mut user, _) = listener.accept().await?;
        let accept = async {
            loop {
                let (stream, _) = listener.accept().await?;
                tokio::spawn(connection(stream));
            }
        };
        tokio::select! {
            _ = user.read_u8() => Ok(()),
            failed = accept => failed,
        }
    })
}

async fn connection(stream: TcpStream) {
    // It may be gone already.
    let _ = stream.set_nodelay(true);
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http2()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    let served = builder.serve_connection(TokioIo::new(stream), service_fn(answer)).await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection broke");
    }
}

type Answer = Response<Either<Full<Bytes>, tonic::body::Body>>;

async fn answer(request: Request<Incoming>) -> Result<Answer, Infallible> {
    let kind = request.headers().get(CONTENT_TYPE);
    if kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc")) {
        let codec = ProstCodec::<InferAnswer, Ask>::default();
        let mut grpc = Grpc::new(codec).max_decoding_message_size(MESSAGE_MAX);
        return Ok(grpc.unary(Bare, request).await.map(Either::Right));
    }
    // A body that breaks breaks its connection, too.
    let _ = request.into_body().collect().await.map(|body| body.to_bytes());
    Ok(Response::new(Either::Left(Full::new(Bytes::from_static(ANSWER)))))
}

/// A request as prost's generated code has it.
#[derive(Clone, PartialEq, Message)]
struct Ask {
    #[prost(string, tag = "1")]
    model_name: String,
    #[prost(message, repeated, tag = "5")]
    inputs: Vec<Tensor>,
    #[prost(bytes = "vec", repeated, tag = "7")]
    raw: Vec<Vec<u8>>,
}

struct Bare;

impl UnaryService<Ask> for Bare {
    type Response = InferAnswer;
    type Future = Ready<Result<tonic::Response<InferAnswer>, Status>>;

    fn call(&mut self, request: tonic::Request<Ask>) -> Self::Future {
        let first = request.get_ref().raw.first().map_or(0, Vec::len) as u64;
        let raw = vec![Bytes::copy_from_slice(&first.to_le_bytes())];
        ready(Ok(tonic::Response::new(InferAnswer { outputs: Vec::new(), raw })))
    }
}
