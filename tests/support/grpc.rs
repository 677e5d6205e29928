//! A gRPC client that does as little as possible for the test: messages are bytes, trailers are looked at.
#![allow(dead_code, reason = "every test file uses another part")]

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time;

/// Longer than anything here takes.
const BOUND: Duration = Duration::from_secs(60);

/// A request of `ModelInfer` with raw contents.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct InferRequest {
    #[prost(string, tag = "1")]
    pub(crate) model_name: String,
    #[prost(string, tag = "2")]
    pub(crate) model_version: String,
    #[prost(string, tag = "3")]
    pub(crate) id: String,
    #[prost(message, repeated, tag = "5")]
    pub(crate) inputs: Vec<Tensor>,
    #[prost(bytes = "vec", repeated, tag = "7")]
    pub(crate) raw: Vec<Vec<u8>>,
}

/// Its answer.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct InferResponse {
    #[prost(string, tag = "3")]
    pub(crate) id: String,
    #[prost(message, repeated, tag = "5")]
    pub(crate) outputs: Vec<Tensor>,
    #[prost(bytes = "vec", repeated, tag = "6")]
    pub(crate) raw: Vec<Vec<u8>>,
}

/// An answer in a stream.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct StreamResponse {
    #[prost(string, tag = "1")]
    pub(crate) error_message: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) infer_response: Option<InferResponse>,
}

/// A tensor of either.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Tensor {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) datatype: String,
    #[prost(int64, repeated, tag = "3")]
    pub(crate) shape: Vec<i64>,
}

/// A connection.
pub(crate) struct Grpc {
    runtime: Runtime,
    sender: SendRequest<Requests>,
    authorization: Option<String>,
}

/// The messages of a call, as they are given.
struct Requests(UnboundedReceiver<Bytes>);

impl Body for Requests {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|message| message.map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// A stream that the server has answered, and that takes further messages.
pub(crate) struct Open {
    requests: UnboundedSender<Bytes>,
    answers: JoinHandle<Ended>,
}

impl Open {
    pub(crate) fn send(&self, message: &[u8]) {
        self.requests.send(framed(message)).unwrap();
    }
}

/// How a call ended.
#[derive(Debug)]
pub(crate) struct Ended {
    messages: Vec<Vec<u8>>,
    trailers: HeaderMap,
}

impl Ended {
    /// The message of a call; empty if there is none.
    pub(crate) fn message(&self) -> &[u8] {
        self.messages.first().map_or(&[], Vec::as_slice)
    }

    /// The answers of a stream.
    pub(crate) fn streamed(&self) -> Vec<StreamResponse> {
        self.messages.iter().map(|message| StreamResponse::decode(&message[..]).unwrap()).collect()
    }

    pub(crate) fn trailer(&self, name: &str) -> Option<&str> {
        self.trailers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn code(&self) -> u8 {
        self.trailer("grpc-status").expect("a status").parse().unwrap()
    }

    /// The words of a problem.
    pub(crate) fn words(&self) -> &str {
        self.trailer("grpc-message").unwrap_or_else(|| panic!("no words: {self:?}"))
    }
}

impl Grpc {
    pub(crate) fn connect(addr: &str) -> Self {
        Self::over(async { TcpStream::connect(addr).await.unwrap() })
    }

    /// Over another stream, such as one with TLS.
    pub(crate) fn over<S>(stream: impl Future<Output = S>) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let sender = runtime.block_on(async {
            let stream = stream.await;
            let (sender, connection) =
                handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
            tokio::spawn(connection);
            sender
        });
        Self { runtime, sender, authorization: None }
    }

    /// With this header from now on.
    pub(crate) fn authorized(mut self, authorization: &str) -> Self {
        self.authorization = Some(authorization.to_owned());
        self
    }

    /// Begins a call. It goes on without the caller, until it is aborted.
    pub(crate) fn begin(
        &self,
        method: &str,
        timeout: Option<&str>,
        message: &[u8],
    ) -> JoinHandle<Ended> {
        self.begin_stream(method, timeout, &[message.to_vec()])
    }

    /// The same with several messages.
    pub(crate) fn begin_stream(
        &self,
        method: &str,
        timeout: Option<&str>,
        messages: &[Vec<u8>],
    ) -> JoinHandle<Ended> {
        let (requests, answer) = self.ask(method, timeout);
        messages.iter().for_each(|message| requests.send(framed(message)).unwrap());
        self.runtime.spawn(async { collected(answer.await).await })
    }

    /// Begins a stream of messages that come later, and waits for the server to have seen it.
    pub(crate) fn open_stream(&self, method: &str, timeout: Option<&str>) -> Open {
        let (requests, answer) = self.ask(method, timeout);
        let answer = self.runtime.block_on(async { time::timeout(BOUND, answer).await.unwrap() });
        Open { requests, answers: self.runtime.spawn(collected(answer)) }
    }

    /// The end of a stream that has no further messages.
    pub(crate) fn close(&self, Open { requests, answers }: Open) -> Ended {
        drop(requests);
        self.end(answers)
    }

    fn ask(
        &self,
        method: &str,
        timeout: Option<&str>,
    ) -> (UnboundedSender<Bytes>, impl Future<Output = Response<Incoming>> + Send + use<>) {
        let path = format!("http://x/inference.GRPCInferenceService/{method}");
        let mut request = Request::post(path).header("content-type", "application/grpc");
        if let Some(timeout) = timeout {
            request = request.header("grpc-timeout", timeout);
        }
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        let (requests, body) = unbounded_channel();
        let request = request.body(Requests(body)).unwrap();
        let mut sender = self.sender.clone();
        (requests, async move { sender.send_request(request).await.unwrap() })
    }

    /// The end of a call.
    pub(crate) fn end(&self, call: JoinHandle<Ended>) -> Ended {
        self.runtime.block_on(async { time::timeout(BOUND, call).await.unwrap().unwrap() })
    }

    pub(crate) fn call(&self, method: &str, timeout: Option<&str>, message: &[u8]) -> Ended {
        self.end(self.begin(method, timeout, message))
    }
}

fn framed(message: &[u8]) -> Bytes {
    [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat().into()
}

/// How the call of this answer ends.
async fn collected(answer: Response<Incoming>) -> Ended {
    assert_eq!(answer.status(), 200);
    let headers = answer.headers().clone();
    let body = answer.into_body().collect().await.unwrap();
    let trailers = body.trailers().cloned().unwrap_or(headers);
    Ended { messages: unframed(&body.to_bytes()), trailers }
}

/// The messages of a body.
fn unframed(mut body: &[u8]) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    while let Some((prefix, rest)) = body.split_at_checked(5) {
        let bytes = u32::from_be_bytes(prefix[1..].try_into().unwrap()) as usize;
        let (message, rest) = rest.split_at(bytes);
        messages.push(message.to_vec());
        body = rest;
    }
    messages
}
