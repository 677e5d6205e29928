//! The protocol's gRPC service, on the connections of HTTP/2.

mod decode;
mod encode;
mod messages;
mod reader;
mod status;
mod stream;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use baton_client::{ModelHandle, Nanos};
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::{HeaderMap, Request, Version};
use prost::Message;
use tokio::time;

use crate::access::{Asker, admit};
use crate::counters::Protocol;
use crate::gateway::App;
use crate::http::answer::{Answer, outgoing};
use crate::http::body::Body;
use crate::http::calls::UnderWay;
use crate::http::held::Held;
use crate::http::outbound::Outbound;
use crate::image;
use crate::infer::{Allowed, infer};
use crate::memory::Memory;
use crate::protocol::deadline::Stated;
use crate::protocol::describe::extensions;
use crate::protocol::memory::Registration;
use crate::protocol::problem::{Kind, Problem};
use crate::protocol::request;
use crate::protocol::route::check_version;
use crate::repository;
use decode::Parts;
use messages::{
    Empty, Flag, IndexAsk, ModelName, Region, RegionName, RepositoryModel, ServerMetadata,
};
use reader::{Reader, framed};

const SERVICE: &str = "/inference.GRPCInferenceService/";

/// Whether a request is a gRPC call.
pub(crate) fn is_grpc<B>(request: &Request<B>) -> bool {
    let kind = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    request.version() == Version::HTTP_2
        && kind.is_some_and(|kind| kind.starts_with("application/grpc"))
}

/// Answers a call.
pub(crate) async fn answer(under_way: UnderWay, request: Request<Incoming>) -> Answer {
    let arrived = under_way.app.clock.now();
    let (head, body) = request.into_parts();
    let path = head.uri.path();
    let Some(method) = path.strip_prefix(SERVICE) else {
        let text = format!("there is no service at {path}: this gateway has {SERVICE}");
        return refuse(under_way, &Problem::new(Kind::NotDone, text));
    };
    let app = Arc::clone(&under_way.app);
    let reader = Stated::of(|name| header(&head.headers, name))
        .and_then(|stated| Ok((stated, Reader::new(&app, &head.headers, body)?)));
    let (stated, reader) = match reader {
        Ok(opened) => opened,
        Err(problem) => return refuse(under_way, &problem),
    };
    // Probes have no token.
    let is_probe = matches!(method, "ServerLive" | "ServerReady");
    let asker = match if is_probe { Ok(None) } else { app.asker(&head.headers) } {
        Ok(asker) => asker,
        Err(problem) => return refuse(under_way, &problem),
    };
    if method == "ModelStreamInfer" {
        return stream::answer(under_way, asker, reader, arrived, stated);
    }
    let result = call(&app, &asker, method, reader, arrived, stated).await;
    let held = |message: Vec<u8>| {
        let mut held = Held::new(&app);
        held.grow(message.len()).map(|()| (message, held))
    };
    match result.and_then(held) {
        Ok((message, held)) => {
            let bytes = outgoing(&app, &under_way.activity, framed(&message), held);
            under_way.end(Protocol::Grpc, None);
            let body = Outbound::whole(bytes).with_trailers(status::ok(method == "ModelInfer"));
            status::answer(body)
        }
        Err(problem) => refuse(under_way, &problem),
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).map(|value| value.to_str().unwrap_or("no text"))
}

fn refuse(under_way: UnderWay, problem: &Problem) -> Answer {
    under_way.end(Protocol::Grpc, Some(problem));
    status::refused(problem)
}

/// The encoded answer of a call with one request.
async fn call(
    app: &Arc<App>,
    asker: &Asker,
    method: &str,
    mut reader: Reader,
    arrived: Nanos,
    stated: Stated,
) -> Result<Vec<u8>, Problem> {
    let slow = |_| {
        let seconds = app.limits.body.as_secs();
        Problem::new(Kind::Slow, format!("the request did not arrive within {seconds} s"))
    };
    let body = time::timeout(app.limits.body, reader.next()).await.map_err(slow)??;
    let none = || Problem::invalid("the call has no message");
    let body = body.ok_or_else(none)?;
    match method {
        "ModelInfer" => {}
        "RepositoryModelLoad" | "RepositoryModelUnload" => {
            return change(app, asker, method == "RepositoryModelLoad", body).await;
        }
        _ => return said(app, asker, method, body),
    }
    let Body { frames, held: _held } = body;
    let infer = infer_message(app, asker, Parts::of(frames)?, arrived, stated);
    before_it_gives_up(app, arrived, stated, infer).await
}

/// The answer, or a word just before the client gives up: then it learns that it was the deadline.
async fn before_it_gives_up<T>(
    app: &App,
    arrived: Nanos,
    stated: Stated,
    answer: impl Future<Output = Result<T, Problem>>,
) -> Result<T, Problem> {
    let Some(span) = stated.gives_up() else { return answer.await };
    let waited = Duration::from_nanos((app.clock.now() - arrived).0);
    let late = |_| {
        let ms = span.as_micros() as f64 / 1e3;
        Problem::new(Kind::Deadline, format!("no answer within the {ms} ms that were given"))
    };
    time::timeout(span.saturating_sub(waited), answer).await.map_err(late)?
}

/// Executes a request; the encoded answer.
async fn infer_message(
    app: &App,
    asker: &Asker,
    parts: Parts,
    arrived: Nanos,
    stated: Stated,
) -> Result<Vec<u8>, Problem> {
    check_version(&parts.rest.model_version)?;
    let model = app.model(asker, &parts.rest.model_name)?;
    let result = async {
        let (mut written, mut binary) = parts.written()?;
        let image = image::in_request(&app.images, &model, &mut written, &mut binary)?;
        let request = request::Request::check(written, &app.described(&model))?;
        admit(asker, app.clock.now(), request.batch)?;
        let allowed = Allowed { arrived, span: stated.allowed(request.timeout, model.slo()) };
        let replies = match image {
            Some((tensor, jpeg)) => vec![image::infer(app, &model, tensor, jpeg, allowed).await?],
            None => infer(app, &model, &request, &mut binary, allowed).await?,
        };
        let id = request.id.as_deref();
        Ok((encode::infer(&model, id, &request.outputs, &replies)?, replies))
    };
    let result = result.await;
    let took = app.clock.now() - arrived;
    match &result {
        Ok((_, replies)) => app.statistics.answered(model.name(), took, replies),
        Err(_) => app.statistics.failed(model.name(), took),
    }
    result.map(|(message, _)| message)
}

/// Loads a model, or unloads it.
async fn change(
    app: &App,
    asker: &Asker,
    is_load: bool,
    mut body: Body,
) -> Result<Vec<u8>, Problem> {
    let RepositoryModel { name, parameters } = decoded(&mut body)?;
    match parameters.keys().next() {
        Some(parameter) if is_load => return Err(repository::no_parameter(parameter)),
        _ if is_load => repository::load(app, asker, &name).await?,
        // `unload_dependents`, which clients send with an unload, says nothing here: no model depends on another.
        _ => repository::unload(app, asker, &name).await?,
    }
    Ok(Empty {}.encode_to_vec())
}

fn decoded<M: Message + Default>(body: &mut Body) -> Result<M, Problem> {
    M::decode(&mut body.frames)
        .map_err(|error| Problem::invalid(format!("the message is broken: {error}")))
}

/// What the gateway says of itself and its models.
fn said(app: &App, asker: &Asker, method: &str, mut body: Body) -> Result<Vec<u8>, Problem> {
    if method == "RepositoryIndex" {
        let IndexAsk { only_ready } = decoded(&mut body)?;
        return Ok(encode::index(&repository::index(app, asker, only_ready)).encode_to_vec());
    }
    let name = || {
        let name: ModelName = decoded(&mut body)?;
        check_version(&name.version).map(|()| name.name)
    };
    let flag = |is_so| Flag { is_so }.encode_to_vec();
    let all = || app.models(asker);
    Ok(match method {
        "ServerLive" => flag(true),
        "ServerReady" => flag(app.unready().is_none()),
        "ModelReady" => flag(app.model(asker, &{ name }()?).is_ok() && app.unready().is_none()),
        "ServerMetadata" => server(app).encode_to_vec(),
        "ModelMetadata" => {
            encode::metadata(&app.described(&app.model(asker, &{ name }()?)?)).encode_to_vec()
        }
        "ModelConfig" => {
            encode::config(&app.described(&app.model(asker, &{ name }()?)?)).encode_to_vec()
        }
        "ModelStatistics" => match &{ name }()?[..] {
            "" => encode::statistics(&app.statistics.json(all().iter().map(ModelHandle::name))),
            one => encode::statistics(
                &app.statistics.json([app.model(asker, one)?.name()].into_iter()),
            ),
        }
        .encode_to_vec(),
        "SystemSharedMemoryStatus"
        | "SystemSharedMemoryRegister"
        | "SystemSharedMemoryUnregister" => {
            return memory(app, method, body);
        }
        "CudaSharedMemoryUnregister" => Empty {}.encode_to_vec(),
        other => return Err(Problem::new(Kind::NotDone, not_done(other))),
    })
}

/// Shared memory: what is registered, one more, or one less.
fn memory(app: &App, method: &str, mut body: Body) -> Result<Vec<u8>, Problem> {
    if method == "SystemSharedMemoryRegister" {
        let Region { name, key, offset, byte_size } = decoded(&mut body)?;
        let registration = Registration { name, key, offset, byte_size };
        Memory::of(&app.memory)?.register(registration)?;
        return Ok(Empty {}.encode_to_vec());
    }
    let RegionName { name } = decoded(&mut body)?;
    let name = Some(&name[..]).filter(|name| !name.is_empty());
    if method == "SystemSharedMemoryStatus" {
        let known = Memory::of(&app.memory)?.status(name)?;
        return Ok(encode::regions(known).encode_to_vec());
    }
    app.memory.as_ref().map_or(Ok(()), |memory| memory.unregister(name))?;
    Ok(Empty {}.encode_to_vec())
}

fn server(app: &App) -> ServerMetadata {
    ServerMetadata {
        name: "baton".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        extensions: extensions(app.memory.is_some()).map(str::to_owned).collect(),
    }
}

fn not_done(method: &str) -> String {
    let fix = match method {
        "TraceSetting" | "LogSettings" => "RUST_LOG sets its log when it starts",
        _ => "docs/gateway.md lists the calls that it has",
    };
    format!("this gateway has no {method}: {fix}")
}
