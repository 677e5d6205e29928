//! The protocol's gRPC service, on the connections of HTTP/2.

mod decode;
mod encode;
mod messages;
mod reader;
mod status;
mod stream;

use std::future::{Future, ready};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use baton_client::{ModelHandle, Nanos, Reply};
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::http::request;
use hyper::{Request, Version};
use prost::Message;
use tokio::time;

use crate::access::{Asker, admit};
use crate::counters::Protocol;
use crate::gateway::App;
use crate::http::answer::{Answer, outgoing};
use crate::http::body::{Body, in_time};
use crate::http::calls::{Answering, UnderWay};
use crate::http::held::Held;
use crate::http::outbound::Outbound;
use crate::http::stated;
use crate::image;
use crate::infer::{Allowed, Tasks, submit};
use crate::memory::Memory;
use crate::protocol::deadline::Stated;
use crate::protocol::describe::extensions;
use crate::protocol::image::ImageTensor;
use crate::protocol::memory::Registration;
use crate::protocol::problem::{Kind, Problem};
use crate::protocol::request::{Request as Checked, Wanted};
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
pub(crate) fn answer(under_way: UnderWay, request: Request<Incoming>) -> Answering {
    let arrived = under_way.app.clock.now();
    let (head, body) = request.into_parts();
    match Call::of(&under_way.app, &head, body, arrived) {
        Ok((call, "ModelStreamInfer")) => Box::pin(ready(stream::answer(under_way, call))),
        Ok((call, "ModelInfer")) => Box::pin(answer_inference(under_way, call)),
        Ok((call, method)) => Box::pin(answer_other(under_way, call, method.to_owned())),
        Err(problem) => Box::pin(ready(refuse(under_way, &problem))),
    }
}

/// What the head of a call says, and its messages.
struct Call {
    asker: Asker,
    arrived: Nanos,
    stated: Stated,
    reader: Reader,
}

impl Call {
    /// The call, and its method.
    fn of<'a>(
        app: &Arc<App>,
        head: &'a request::Parts,
        body: Incoming,
        arrived: Nanos,
    ) -> Result<(Self, &'a str), Problem> {
        let path = head.uri.path();
        let method = path.strip_prefix(SERVICE).ok_or_else(|| {
            let text = format!("there is no service at {path}: this gateway has {SERVICE}");
            Problem::new(Kind::NotDone, text)
        })?;
        let stated = stated(&head.headers)?;
        let reader = Reader::new(app, &head.headers, body)?;
        // Probes have no token.
        let is_probe = matches!(method, "ServerLive" | "ServerReady");
        let asker = if is_probe { None } else { app.asker(&head.headers)? };
        Ok((Self { asker, arrived, stated, reader }, method))
    }
}

async fn answer_inference(under_way: UnderWay, mut call: Call) -> Answer {
    let message = infer_call(&under_way.app, &mut call).await;
    ended(under_way, message, true)
}

async fn answer_other(under_way: UnderWay, mut call: Call, method: String) -> Answer {
    let message = other(&under_way.app, &mut call, &method).await;
    ended(under_way, message.map(|message| framed(&message)), false)
}

/// The call is answered with this message in its frame, or has this problem.
fn ended(under_way: UnderWay, message: Result<Vec<u8>, Problem>, has_outcome: bool) -> Answer {
    let mut held = Held::new(&under_way.app);
    match message.and_then(|message| held.grow(message.len()).map(|()| message)) {
        Ok(message) => {
            let UnderWay { app, activity, .. } = &under_way;
            let bytes = outgoing(app, activity, message, held);
            under_way.end(Protocol::Grpc, None);
            status::answer(Outbound::whole(bytes).with_trailers(status::ok(has_outcome)))
        }
        Err(problem) => refuse(under_way, &problem),
    }
}

fn refuse(under_way: UnderWay, problem: &Problem) -> Answer {
    under_way.end(Protocol::Grpc, Some(problem));
    status::refused(problem)
}

/// The only message of a call.
async fn message(app: &App, reader: &mut Reader) -> Result<Body, Problem> {
    let message = in_time(app, pin!(reader.next())).await??;
    message.ok_or_else(|| Problem::invalid("the call has no message"))
}

/// The encoded answer to an inference, in its frame.
async fn infer_call(app: &App, call: &mut Call) -> Result<Vec<u8>, Problem> {
    let Call { asker, arrived, stated, reader } = call;
    let Body { frames, held } = message(app, reader).await?;
    let infer = pin!(infer_message(app, asker, Parts::of(frames)?, *arrived, *stated));
    // Its bytes are in slots.
    drop(held);
    before_it_gives_up(app, *arrived, *stated, infer).await
}

/// The encoded answer to another call.
async fn other(app: &App, call: &mut Call, method: &str) -> Result<Vec<u8>, Problem> {
    let body = message(app, &mut call.reader).await?;
    match method {
        "RepositoryModelLoad" => change(app, &call.asker, true, body).await,
        "RepositoryModelUnload" => change(app, &call.asker, false, body).await,
        _ => said(app, &call.asker, method, body),
    }
}

/// The answer, or a word just before the client gives up: then it learns that it was the deadline.
async fn before_it_gives_up<T>(
    app: &App,
    arrived: Nanos,
    stated: Stated,
    answer: Pin<&mut impl Future<Output = Result<T, Problem>>>,
) -> Result<T, Problem> {
    let Some(span) = stated.gives_up() else { return answer.await };
    let waited = Duration::from_nanos((app.clock.now() - arrived).0);
    let late = |_| {
        let ms = span.as_micros() as f64 / 1e3;
        Problem::new(Kind::Deadline, format!("no answer within the {ms} ms that were given"))
    };
    time::timeout(span.saturating_sub(waited), answer).await.map_err(late)?
}

/// Submits a request; then the encoded answer, in its frame.
fn infer_message(
    app: &App,
    asker: &Asker,
    parts: Parts,
    arrived: Nanos,
    stated: Stated,
) -> impl Future<Output = Result<Vec<u8>, Problem>> + Send {
    let prepared = Prepared::of(app, asker, parts, (arrived, stated));
    async move {
        let (prepared, work) = prepared?;
        let result = prepared.infer(app, work).await;
        let replies = result.as_ref().map(|(_, replies)| &replies[..]);
        app.count_inference(&prepared.model, arrived, replies);
        result.map(|(message, _)| message)
    }
}

/// An inference that fits its model.
struct Prepared {
    model: ModelHandle,
    wanted: Wanted,
    allowed: Allowed,
}

enum Work {
    /// To be submitted.
    Image(Box<(ImageTensor, Bytes)>),
    Submitted(Tasks),
}

impl Prepared {
    fn of(
        app: &App,
        asker: &Asker,
        parts: Parts,
        (arrived, stated): (Nanos, Stated),
    ) -> Result<(Self, Work), Problem> {
        check_version(&parts.rest.model_version)?;
        let model = app.model(asker, &parts.rest.model_name)?;
        let fits = || {
            let (mut written, mut binary) = parts.written()?;
            let image = image::in_request(&app.images, &model, &mut written, &mut binary)?;
            let request = Checked::check(written, &app.described(&model))?;
            admit(asker, app.clock.now(), request.batch)?;
            let span = stated.allowed(request.timeout, model.slo());
            let allowed = Allowed { arrived, span };
            let work = match image {
                Some(image) => Work::Image(Box::new(image)),
                None => Work::Submitted(submit(app, &model, &request, &mut binary, allowed)?),
            };
            Ok((request.wanted, work, allowed))
        };
        match fits() {
            Ok((wanted, work, allowed)) => Ok((Self { model, wanted, allowed }, work)),
            Err(problem) => {
                app.count_inference(&model, arrived, Err(&problem));
                Err(problem)
            }
        }
    }

    /// The encoded answer, and what it is made of.
    async fn infer(&self, app: &App, work: Work) -> Result<(Vec<u8>, Vec<Reply>), Problem> {
        let Self { model, wanted, allowed } = self;
        let replies = match work {
            Work::Image(image) => {
                let (tensor, jpeg) = *image;
                vec![Box::pin(image::infer(app, model, tensor, jpeg, *allowed)).await?]
            }
            Work::Submitted(mut tasks) => tasks.replies(model, &wanted.places).await?,
        };
        let (about, is_late) = ((model, wanted.id.as_deref()), allowed.is_over(app));
        let message = encode::infer(about, &wanted.outputs, &replies, is_late)?;
        Ok((message, replies))
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn size<A, F>(_: fn(A) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn a_call_is_one_over_http_2_that_says_so() {
        let is_call = |version, kind: Option<&str>| {
            let request = Request::builder().version(version);
            let request =
                kind.into_iter().fold(request, |request, kind| request.header(CONTENT_TYPE, kind));
            is_grpc(&request.body(()).expect("a request"))
        };
        assert!(is_call(Version::HTTP_2, Some("application/grpc")));
        assert!(is_call(Version::HTTP_2, Some("application/grpc+proto")));
        assert!(!is_call(Version::HTTP_2, Some("application/json")));
        assert!(!is_call(Version::HTTP_2, None));
        assert!(!is_call(Version::HTTP_11, Some("application/grpc")));
    }

    #[test]
    fn a_call_that_there_is_not_is_named_with_what_to_do() {
        for method in ["TraceSetting", "LogSettings"] {
            let words = format!("this gateway has no {method}: RUST_LOG sets");
            assert!(not_done(method).starts_with(&words), "{}", not_done(method));
        }
        assert!(not_done("Nothing").ends_with("docs/gateway.md lists the calls that it has"));
    }

    /// Each takes as much memory while it waits for its outcome.
    #[test]
    fn what_is_kept_of_a_call_is_small() {
        let bytes = size(|(under_way, call)| answer_inference(under_way, call));
        // Which features of other packages are built makes some difference.
        assert!(bytes <= 2_048, "{bytes} bytes");
    }
}
