//! Connections to a server, and one request over one of them.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, TE};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time;

use super::outcome::Refused;
use super::security::{SecurityError, Server, Stream};
use super::url::{Protocol, Url};

/// Bytes of an answer.
const ANSWER_MAX: usize = 256 << 20;
/// For a connection to be made.
const CONNECT: Duration = Duration::from_secs(5);
/// HTTP/2: bytes under way to a request, and to all of a connection.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;

pub(super) const JSON_LENGTH: HeaderName =
    HeaderName::from_static("inference-header-content-length");
const OUTCOME: &str = "baton-outcome";

/// A request of the server's.
#[derive(Clone, Debug)]
pub(super) struct Call {
    /// Behind `/v2`, or gRPC's method.
    pub(super) path: String,
    pub(super) is_get: bool,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// An answer's body, and how much of it is JSON.
pub(super) struct Answer {
    pub(super) body: Bytes,
    pub(super) json_bytes: Option<usize>,
}

/// What several requests at a time may share.
enum Sender {
    Http(http1::SendRequest<Full<Bytes>>),
    Grpc(http2::SendRequest<Full<Bytes>>),
}

/// A connection that is made when it is needed, and again after it broke. An HTTP/1.1 connection has one request at a time;
/// clones of a gRPC one share it.
#[derive(Clone)]
pub(super) struct Link {
    server: Rc<Server>,
    sender: Rc<Mutex<Option<Sender>>>,
}

impl Link {
    pub(super) fn new(server: &Rc<Server>) -> Self {
        Self { server: Rc::clone(server), sender: Rc::new(Mutex::new(None)) }
    }

    /// Whether the server's TLS is what was asked for. One that cannot be reached says nothing of that.
    pub(super) async fn check(&self) -> Result<(), SecurityError> {
        match self.reach().await {
            Ok(stream) => self.server.greet(stream).await.map(|_| ()),
            Err(_) => Ok(()),
        }
    }

    /// The answer, or why there is none.
    pub(super) async fn call(&self, call: Call) -> Result<Answer, Refused> {
        let request = self.request(call).map_err(|error| failed("no_request", &error))?;
        let answer = match self.server.url.protocol {
            Protocol::Http => self.send_alone(request).await?,
            Protocol::Grpc => self.send_among_others(request).await?,
        };
        let (head, body) = answer.into_parts();
        let text = |headers: &HeaderMap, name: &str| {
            headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
        };
        let body = Limited::new(body, ANSWER_MAX).collect().await;
        let body = body.map_err(|error| failed("connection_lost", &error))?;
        let trailers = body.trailers().cloned();
        let body = body.to_bytes();
        let status = head.status.as_u16();
        let refused = match self.server.url.protocol {
            Protocol::Http => Refused::by_status(status, text(&head.headers, OUTCOME).as_deref()),
            Protocol::Grpc if status != 200 => Refused::by_status(status, None),
            Protocol::Grpc => {
                let end = trailers.as_ref().unwrap_or(&head.headers);
                let code = text(end, "grpc-status").and_then(|code| code.parse().ok());
                Refused::by_code(code.unwrap_or(2), text(end, OUTCOME).as_deref())
            }
        };
        if let Some(refused) = refused {
            tracing::debug!(?refused, body = %String::from_utf8_lossy(&body), "refused");
            return Err(refused);
        }
        let json_bytes = text(&head.headers, JSON_LENGTH.as_str()).and_then(|n| n.parse().ok());
        Ok(Answer { body, json_bytes })
    }

    /// Gives up what is under way: the next request has another connection.
    pub(super) async fn cut(&self) {
        if self.server.url.protocol == Protocol::Http {
            *self.sender.lock().await = None;
        }
    }

    fn request(&self, call: Call) -> Result<Request<Full<Bytes>>, hyper::http::Error> {
        let Url { protocol, is_secure, authority, prefix } = &self.server.url;
        let mut request = match protocol {
            Protocol::Http => {
                let method = if call.is_get { "GET" } else { "POST" };
                Request::builder()
                    .method(method)
                    .uri(format!("{prefix}/v2{}", call.path))
                    .header("host", authority)
                    .body(Full::new(call.body))?
            }
            Protocol::Grpc => {
                let service = "inference.GRPCInferenceService";
                let scheme = if *is_secure { "https" } else { "http" };
                Request::post(format!("{scheme}://{authority}/{service}/{}", call.path))
                    .header(CONTENT_TYPE, "application/grpc")
                    .header(TE, "trailers")
                    .body(Full::new(call.body))?
            }
        };
        request.headers_mut().extend(call.headers);
        if let Some(authorization) = &self.server.authorization {
            request.headers_mut().insert(AUTHORIZATION, authorization.clone());
        }
        Ok(request)
    }

    async fn send_alone(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, Refused> {
        let mut place = self.sender.lock().await;
        // A server may have closed it after its last answer.
        let usable = match place.take() {
            Some(Sender::Http(mut sender)) => sender.ready().await.is_ok().then_some(sender),
            _ => None,
        };
        let mut sender = match usable {
            Some(sender) => sender,
            None => {
                let io = TokioIo::new(self.connect().await?);
                let handshake = http1::handshake(io).await;
                let (sender, connection) =
                    handshake.map_err(|error| failed("connect_failed", &error))?;
                tokio::spawn(connection);
                sender
            }
        };
        let answer = sender.send_request(request).await;
        *place = Some(Sender::Http(sender));
        answer.map_err(|error| failed("connection_lost", &error))
    }

    async fn send_among_others(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, Refused> {
        let mut sender = {
            let mut place = self.sender.lock().await;
            match &*place {
                Some(Sender::Grpc(sender)) if !sender.is_closed() => sender.clone(),
                _ => {
                    let io = TokioIo::new(self.connect().await?);
                    let handshake = http2::Builder::new(TokioExecutor::new())
                        .initial_stream_window_size(STREAM_WINDOW)
                        .initial_connection_window_size(CONNECTION_WINDOW)
                        .handshake(io)
                        .await;
                    let (sender, connection) =
                        handshake.map_err(|error| failed("connect_failed", &error))?;
                    tokio::spawn(connection);
                    *place = Some(Sender::Grpc(sender.clone()));
                    sender
                }
            }
        };
        sender.send_request(request).await.map_err(|error| failed("connection_lost", &error))
    }

    async fn connect(&self) -> Result<Box<dyn Stream>, Refused> {
        let greeted = self.server.greet(self.reach().await?);
        let greeted = time::timeout(CONNECT, greeted).await;
        let greeted = greeted.map_err(|error| failed("connect_failed", &error))?;
        greeted.map_err(|error| failed("connect_failed", &error))
    }

    async fn reach(&self) -> Result<TcpStream, Refused> {
        let stream = time::timeout(CONNECT, TcpStream::connect(&self.server.url.authority)).await;
        let stream = stream.map_err(|error| failed("connect_failed", &error))?;
        let stream = stream.map_err(|error| failed("connect_failed", &error))?;
        stream.set_nodelay(true).map_err(|error| failed("connect_failed", &error))?;
        Ok(stream)
    }
}

fn failed(reason: &str, error: &(impl std::fmt::Display + ?Sized)) -> Refused {
    tracing::debug!(reason, %error, "a request has no answer");
    Refused::Failed(reason.to_owned())
}

/// A header's value of digits.
pub(super) fn digits(number: impl Into<u64>) -> HeaderValue {
    HeaderValue::from(number.into())
}
